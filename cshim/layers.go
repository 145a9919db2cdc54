package cshim

/*
#cgo noescape lsc_linear_activation
#cgo nocallback lsc_linear_activation
#include "table_gen.h"
*/
import "C"

// An Activation is a function that LinearActivation applies.
type Activation int32

const (
	ActivationReLU     Activation = C.LS_ACTIVATION_RELU
	ActivationSigmoid  Activation = C.LS_ACTIVATION_SIGMOID
	ActivationTanh     Activation = C.LS_ACTIVATION_TANH
	ActivationSiLU     Activation = C.LS_ACTIVATION_SILU
	ActivationGELU     Activation = C.LS_ACTIVATION_GELU
	ActivationGELUTanh Activation = C.LS_ACTIVATION_GELU_TANH
)

// LinearActivation returns the activation of a linear layer.
func LinearActivation(input, weight, bias Handle, a Activation) Result {
	c := enter()
	r := result(C.lsc_linear_activation(native(input), native(weight), native(bias), C.int32_t(a)))
	c.leave()
	return r
}
