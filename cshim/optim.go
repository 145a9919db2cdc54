package cshim

/*
#cgo noescape lsc_adam_step
#cgo nocallback lsc_adam_step
#cgo noescape lsc_round_stochastic
#cgo nocallback lsc_round_stochastic
#include "table_gen.h"
*/
import "C"

// Adam holds the settings of AdamStep.
type Adam struct {
	LR, Beta1, Beta2, WeightDecay, Eps float64
	AMSGrad, Maximize, Decoupled       bool
}

// AdamStep runs a fused step on those parameters that have a gradient. maxs is empty without AMSGrad.
func AdamStep(how Adam, params, avgs, sqs, maxs, steps []Handle) ErrorRef {
	defer enter().leave()
	c := C.ls_adam{lr: C.double(how.LR), beta1: C.double(how.Beta1), beta2: C.double(how.Beta2), weight_decay: C.double(how.WeightDecay), eps: C.double(how.Eps),
		amsgrad: flag(how.AMSGrad), maximize: flag(how.Maximize), decoupled: flag(how.Decoupled)}
	var m *C.ls_tensor // an empty slice has an address too
	if len(maxs) != 0 {
		m = handles(maxs)
	}
	return C.lsc_adam_step(&c, C.uint64_t(len(params)), handles(params), handles(avgs), handles(sqs), m, handles(steps))
}

// RoundStochastic rounds from, float32, to bfloat16 into to, up or down at random.
func RoundStochastic(to, from Handle) ErrorRef {
	defer enter().leave()
	return C.lsc_round_stochastic(native(to), native(from))
}
