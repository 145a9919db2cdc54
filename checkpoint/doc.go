// Package checkpoint reads and writes files of tensors: safetensors, the format in which models are shared, the files of
// PyTorch and NumPy, and training runs.
//
//	file, err := checkpoint.Load("model.safetensors") // or model.safetensors.index.json, model.pt, arrays.npz
//	if err != nil {
//		return err
//	}
//	defer file.Close()
//	weight := file.Tensor("blocks.0.attn.qkv.weight")
//
// Load maps the file instead of copying it, and checks everything in it except the tensors' values. SaveModel writes a file
// that Python can load.
//
// # PyTorch
//
// Linstock continues a run that Python has saved. In a file of torch.save({"model": model.state_dict(), "optimizer":
// opt.state_dict()}, path) the tensors have names such as model.fc.weight:
//
//	file, err := checkpoint.Load("run.pt")
//	if err != nil {
//		return err
//	}
//	defer file.Close()
//	state, err := file.OptimizerState("optimizer")
//	if err != nil {
//		return err
//	}
//	var report nn.LoadReport
//	err = file.LoadModel(model, nn.Strict(false), nn.Report(&report), nn.Rename(func(name string) string {
//		name, _ = strings.CutPrefix(name, "model.")
//		return name
//	}))
//	if err != nil {
//		return err
//	}
//	fmt.Println(report) // what was loaded, missing, unexpected, mismatched
//	return opt.LoadStateDict(state)
//
// Python continues a run of Linstock, with torch.load("run.pt"):
//
//	err := checkpoint.SavePyTorch("run.pt", map[string]any{"model": nn.StateDict(model), "optimizer": opt.StateDict()})
//
// Such a file contains a pickle, which in Python can run any program. Load calls nothing, and refuses files that contain
// more than tensors, dicts, lists, strings and numbers, with an error that names the Python class; with [SkipObjects] it
// opens the rest of such a file. For a TorchScript archive or a package of torch.export, the error says so.
//
// # Training runs
//
// SaveTraining and LoadTraining save and restore model, optimizer, random generators and position in the data, so that
// a stopped run continues bit for bit. Their file is also a safetensors file, with these tensors:
//
//	model.NAME            parameters and buffers, by their names in nn.StateDict
//	optimizer.state.N.…   the state of the optimizer for parameter N; "optimizer" holds its hyperparameters
//	optimizer:NAME.…      the same of the part Named(NAME, Optimizer(…)); "optimizer:NAME" holds its hyperparameters
//	rng.cpu               the state of the CPU's random generator
//	rng.cuda.N            the state of CUDA device N's random generator, if the run has used the device
//	loader, schedule, scaler
//	                      the parts Loader, Schedule and Scaler; with a name, loader:NAME and so on
//	value.NAME            the part Value(NAME, …)
//
// A slice of numbers or bools is stored as a tensor with one dimension and their dtype (int64 for int), and any other
// value as a uint8 tensor that holds it in CBOR (RFC 8949). So Python reads the losses of a run with
// safetensors.torch.load_file(path)["value.losses"], and its settings with
// cbor2.loads(bytes(safetensors.numpy.load_file(path)["value.settings"])).
package checkpoint
