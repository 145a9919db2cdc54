// Package optim provides optimizers and learning-rate schedules, as in torch.optim.
//
//	opt, err := optim.NewAdamW(nn.Parameters(model), 3e-4, optim.WeightDecay(0.1))
//	if err != nil {
//		return err
//	}
//	schedule, err := optim.NewScheduler(opt, optim.WarmupCosine(100, 1000, 0))
//	if err != nil {
//		return err
//	}
//	for range 1000 {
//		err := tensor.WithScope(func() error {
//			loss := lossOf(model)
//			opt.ZeroGrad()
//			if err := loss.Backward(); err != nil {
//				return err
//			}
//			return opt.Step()
//		})
//		if err != nil {
//			return err
//		}
//		schedule.Step()
//	}
//
// Most optimizers run libtorch's fused kernels (Adam, AdamW, SGD, and Adagrad on the CPU) or its kernels for lists of
// tensors, and compute, except for complex parameters, the same bits as PyTorch with fused=True or foreach=True; LBFGS,
// Muon and SparseAdam have neither.
// A step on these kernels takes a few native calls for all the parameters of a group together, whatever their number.
// Algorithm describes an optimizer of your own. Complex parameters are optimized as pairs of real numbers, also by
// the fused kernels, while PyTorch refuses them with fused=True; their bits may differ from PyTorch's. Adafactor, Muon and
// SparseAdam do not accept them, as in PyTorch.
//
// Make the optimizer after the model has its final device and dtype (nn.To): the optimizer's state takes the dtype and
// device that each parameter has at its first step. AddGroup adds parameters with their own hyperparameters.
// MasterWeights keeps float32 copies of bfloat16 and float16 parameters, and StochasticRounding trains bfloat16 parameters
// without copies. StepInBackward updates each parameter within the backward pass, so that gradients do not add up.
//
// StateDict and LoadStateDict save and restore an optimizer, in PyTorch's layout. A run restored from a checkpoint of the
// model, the optimizer and the random generator computes the same bits as a run that was not interrupted.
package optim
