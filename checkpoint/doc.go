// Package checkpoint reads and writes safetensors files, the format that PyTorch's models are shared in, and
// stores whole training runs in them.
//
//	file, err := checkpoint.Load("model.safetensors")
//	if err != nil {
//		return err
//	}
//	defer file.Close()
//	weight := file.Tensor("blocks.0.attn.qkv.weight")
//
// Reading maps the file instead of copying it, and trusts nothing that the file says. SaveTraining and
// LoadTraining hold model, optimizer, random generator and the position in the data, so that a stopped run goes
// on bit for bit.
package checkpoint
