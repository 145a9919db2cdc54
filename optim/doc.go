// Package optim has the optimizers and learning-rate schedules of training.
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
// The optimizers are libtorch's fused kernels and give PyTorch's results with fused=True to the last bit. A step is a
// few calls for all the parameters of a group together, whatever their number.
//
// Make an optimizer after the model stands on its device and in its dtype (nn.To): what it remembers is of the
// parameters' dtype and device at their first step. Parameters with hyperparameters of their own come by AddGroup.
//
// StateDict and LoadStateDict are for checkpoints. A run that goes on from one, with the model's state and the
// generator's too, does not differ from one that was never interrupted.
package optim
