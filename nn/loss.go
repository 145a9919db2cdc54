package nn

import "github.com/linstock-ml/linstock/tensor"

// CrossEntropy returns the cross entropy of logits (N, C, *) and targets, which are class indices (N, *) of dtype int64
// or probabilities of the logits' shape. By default it returns the mean, a scalar. Options: a tensor.Reduction,
// tensor.Weight, tensor.IgnoreIndex, tensor.LabelSmoothing. PyTorch: torch.nn.functional.cross_entropy.
func CrossEntropy(logits, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logits.CrossEntropy(targets, opts...)
}

// NLLLoss returns the negative log likelihood of the target classes (N, *), of dtype int64, under log probabilities
// (N, C, *). Options: a tensor.Reduction, tensor.Weight, tensor.IgnoreIndex. PyTorch: torch.nn.functional.nll_loss.
func NLLLoss(logProbs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logProbs.NLLLoss(targets, opts...)
}

// MSELoss returns the mean of (x-target)². Both have the same shape. Options: a tensor.Reduction. PyTorch:
// torch.nn.functional.mse_loss.
func MSELoss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.MSELoss(target, opts...)
}

// L1Loss returns the mean of |x-target|. Both have the same shape. Options: a tensor.Reduction. PyTorch:
// torch.nn.functional.l1_loss.
func L1Loss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.L1Loss(target, opts...)
}

// SmoothL1Loss returns the mean of the smooth L1 loss: quadratic where |x-target| is below tensor.Beta (1 by default)
// and linear above. Both have the same shape. Options: tensor.Beta, a tensor.Reduction. PyTorch:
// torch.nn.functional.smooth_l1_loss.
func SmoothL1Loss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.SmoothL1Loss(target, opts...)
}

// BCELoss returns the binary cross entropy of probabilities and targets, which have the same shape and values in [0,
// 1]. Options: tensor.Weight, a tensor.Reduction. PyTorch: torch.nn.functional.binary_cross_entropy.
func BCELoss(probs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return probs.BinaryCrossEntropy(targets, opts...)
}

// BCEWithLogitsLoss returns BCELoss of the sigmoid of logits, computed in a numerically stable way. Options:
// tensor.Weight, tensor.PosWeight, a tensor.Reduction. PyTorch: torch.nn.functional.binary_cross_entropy_with_logits.
func BCEWithLogitsLoss(logits, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logits.BinaryCrossEntropyWithLogits(targets, opts...)
}

// KLDivLoss returns the Kullback-Leibler divergence of targets from logProbs, averaged over all elements. Targets are
// probabilities, or their logarithms with tensor.LogTarget(true). For the mathematical mean over a batch of N,
// PyTorch's "batchmean", use tensor.ReduceSum and divide by N. PyTorch: torch.nn.functional.kl_div.
func KLDivLoss(logProbs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logProbs.KLDiv(targets, opts...)
}
