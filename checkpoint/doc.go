// Package checkpoint reads and writes safetensors files, the format in which PyTorch's models are shared, and stores
// whole training runs in them.
//
//	file, err := checkpoint.Load("model.safetensors")
//	if err != nil {
//		return err
//	}
//	defer file.Close()
//	weight := file.Tensor("blocks.0.attn.qkv.weight")
//
// Load maps the file instead of copying it, and checks everything that the file says. SaveModel writes a file that
// Python reads as it is.
//
// SaveTraining and LoadTraining hold model, optimizer, random generators and position in the data, so that a stopped run
// goes on bit for bit. Their file is a safetensors file as well, with these tensors:
//
//	model.NAME            parameters and buffers, by their names in nn.StateDict
//	optimizer.state.N.…   the state of the optimizer for parameter N; "optimizer" holds its hyperparameters
//	rng.cpu               the state of the CPU's random generator
//	rng.cuda.N            that of the CUDA device N, where the run has used it
//	loader, schedule      the parts Loader and Schedule
//	value.NAME            the part Value(NAME, …)
//
// A value is encoded by one rule. A slice of numbers or bools is a tensor with one dimension and their dtype (int64 for
// int); any other value is a uint8 tensor that holds it in CBOR (RFC 8949). So Python reads the losses of a run with
// safetensors.torch.load_file(path)["value.losses"], and its settings with
// cbor2.loads(bytes(safetensors.numpy.load_file(path)["value.settings"])).
package checkpoint
