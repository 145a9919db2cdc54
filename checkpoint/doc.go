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
// Load maps the file instead of copying it, and checks the whole header. SaveModel writes a file that Python can load.
//
// SaveTraining and LoadTraining save and restore model, optimizer, random generators and position in the data, so that
// a stopped run continues bit for bit. Their file is also a safetensors file, with these tensors:
//
//	model.NAME            parameters and buffers, by their names in nn.StateDict
//	optimizer.state.N.…   the state of the optimizer for parameter N; "optimizer" holds its hyperparameters
//	rng.cpu               the state of the CPU's random generator
//	rng.cuda.N            the state of CUDA device N's random generator, if the run has used the device
//	loader, schedule      the parts Loader and Schedule
//	value.NAME            the part Value(NAME, …)
//
// A slice of numbers or bools is stored as a tensor with one dimension and their dtype (int64 for int), and any other
// value as a uint8 tensor that holds it in CBOR (RFC 8949). So Python reads the losses of a run with
// safetensors.torch.load_file(path)["value.losses"], and its settings with
// cbor2.loads(bytes(safetensors.numpy.load_file(path)["value.settings"])).
package checkpoint
