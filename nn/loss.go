package nn

import "github.com/linstock-ml/linstock/tensor"

// CrossEntropy is the cross entropy of logits (N, C, *) and targets: class indices (N, *), int64, or probabilities
// of the logits' shape. It has no dimensions unless the option tensor.ReduceNone is given. Other options:
// tensor.ReduceSum, tensor.Weight, tensor.IgnoreIndex, tensor.LabelSmoothing. PyTorch:
// torch.nn.functional.cross_entropy.
func CrossEntropy(logits, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logits.CrossEntropy(targets, opts...)
}

// NLLLoss is the negative log likelihood: of log probabilities (N, C, *), those of the target classes (N, *),
// int64. Options: a tensor.Reduction, tensor.Weight, tensor.IgnoreIndex. PyTorch: torch.nn.functional.nll_loss.
func NLLLoss(logProbs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logProbs.NLLLoss(targets, opts...)
}

// MSELoss is the mean of (x-target)², both of one shape. Options: a tensor.Reduction. PyTorch: torch.nn.functional.mse_loss.
func MSELoss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.MSELoss(target, opts...)
}

// L1Loss is the mean of |x-target|, both of one shape. Options: a tensor.Reduction. PyTorch: torch.nn.functional.l1_loss.
func L1Loss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.L1Loss(target, opts...)
}

// SmoothL1Loss is L1Loss with a parabola below tensor.Beta, 1 by default. Options: tensor.Beta, a
// tensor.Reduction. PyTorch: torch.nn.functional.smooth_l1_loss.
func SmoothL1Loss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.SmoothL1Loss(target, opts...)
}

// BCELoss is the binary cross entropy of probabilities and targets, both of one shape and in [0, 1]. Options:
// tensor.Weight, a tensor.Reduction. PyTorch: torch.nn.functional.binary_cross_entropy.
func BCELoss(probs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return probs.BinaryCrossEntropy(targets, opts...)
}

// BCEWithLogitsLoss is BCELoss of the logits' sigmoid, computed safely. Options: tensor.Weight, tensor.PosWeight, a
// tensor.Reduction. PyTorch: torch.nn.functional.binary_cross_entropy_with_logits.
func BCEWithLogitsLoss(logits, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logits.BinaryCrossEntropyWithLogits(targets, opts...)
}

// KLDivLoss is the Kullback-Leibler divergence of targets, probabilities (or with tensor.LogTarget(true) their
// logarithms), from logProbs, averaged over all elements; for the mathematical mean over a batch use
// tensor.ReduceSum and divide by N, PyTorch's "batchmean". PyTorch: torch.nn.functional.kl_div.
func KLDivLoss(logProbs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logProbs.KLDiv(targets, opts...)
}
