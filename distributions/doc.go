// Package distributions has PyTorch's probability distributions: their draws, log probabilities, moments and
// divergences, all differentiable. It corresponds to torch.distributions. This program fits a normal distribution to
// draws of another:
//
//	data := distributions.NewNormal(3, 2).Sample(1000)
//	loc, logScale := tensor.Zeros([]int{}).RequiresGrad_(), tensor.Zeros([]int{}).RequiresGrad_()
//	opt, err := optim.NewAdam([]*tensor.Tensor{loc, logScale}, 0.1)
//	if err != nil {
//		return err
//	}
//	for range 300 {
//		err := tensor.WithScope(func() error {
//			d := distributions.NewNormal(loc, logScale.Exp())
//			opt.ZeroGrad()
//			if err := d.LogProb(data).Mean().Neg().Backward(); err != nil {
//				return err
//			}
//			return opt.Step()
//		})
//		if err != nil {
//			return err
//		}
//	}
//
// # Parameters
//
// A parameter is a number or a tensor. Several are broadcast against each other, and their common shape is the batch
// shape: NewNormal with tensors of 3 numbers is a batch of three distributions. Where PyTorch has a choice of parameters,
// as between probs and logits, they are options: NewBernoulli(Logits(x)).
//
// A distribution keeps handles to its parameters and uses tensors that its constructor made. Those belong to the scope in
// which it was made, as the results of operators do: a distribution made in the body of a loop over batches ends with
// it, and one made outside all scopes is freed once it is unreachable.
//
// # Draws
//
// Sample draws without gradients, and RSample so that gradients reach the parameters. With the same seed, both return
// PyTorch's values. The methods are those of the interface Distribution.
//
// # Errors
//
// A constructor returns only the distribution, which carries an error if it fails, as the constructors of package nn do:
// Err returns it, and so does every tensor that its methods return. By default constructors check the values of
// parameters and LogProb those of its argument; ValidateArgs(false) switches that off.
package distributions
