// Package dcp saves and loads checkpoints that the ranks of a group write and read together. It corresponds to
// torch.distributed.checkpoint.
//
//	state := dcp.State{
//		Shards:    dcp.Model("model.", model),
//		Optimizer: opt,
//		Parts:     []checkpoint.Part{checkpoint.Loader(loader), checkpoint.Value("step", &step)},
//	}
//	err := dcp.Save(ctx, g, "run/last", state) // on all ranks
//	…
//	err := dcp.Load(ctx, g, "run/last", state) // also with another number of ranks
//
// # Tensors
//
// A checkpoint consists of whole tensors with names. Of each, a rank has a [Shard]: a rectangle, or all of it. A
// rectangle that several ranks have is written once, and all ranks write about the same amount. Load sets the rank's
// rectangles from those in the files, however they are divided there. [Model] lists those of a model.
//
// # Files
//
// A checkpoint is a directory of safetensors files on a file system that all ranks see:
//
//	shard-00001-model-00001-of-00001.safetensors  what rank 0 has written; the metadata has the offsets of each tensor
//	…
//	values.safetensors                            values, see checkpoint.SaveValues
//
// These are the files of PyTorch's HuggingFaceStorageWriter with save_distributed, and both read each other's:
//
//	dcp.load(state, storage_reader=HuggingFaceStorageReader("run/last"))
//
// The names in the state are model.NAME and optimizer.state.N.NAME, as in Python's {"model": model.state_dict(),
// "optimizer": optimizer.state_dict()}; those of a further optimizer are optimizer:KEY.state.N.NAME.
//
// # Failures
//
// Save replaces a checkpoint completely or not at all: the ranks write to a directory beside it, and after all of them have
// succeeded, rank 0 renames it. If one fails, because its disk is full, the others get a *[RankError], and the old
// checkpoint stays. The same holds if a process is killed; the directory .NAME.dcp-saving-… that it leaves is removed by
// the next Save. The new directory and its files keep the permissions of the old ones. While a save is in progress, rank 0
// has locked the file .NAME.dcp-lock, and a save to the same path in another process is an error. On a file system
// without locks it is not an error, and Save does not remove what killed saves have left. If the old checkpoint has to
// be renamed first, and rank 0 is killed between the two renames, it remains as .NAME.dcp-old: Load reads it there,
// even if an empty directory has been made in its place, and the next Save renames it back. A checkpoint of a
// container's image cannot be renamed: while its files are removed, of which .dcp-removing is the last, the new one is
// .NAME.dcp-new, where Load reads it.
//
// Since a checkpoint is renamed, it cannot be a mount point, such as the volume of a container: save to a directory within it.
//
// If the context of a rank ends within a call, the group is aborted, and the other ranks get a *dist.PeerError. A context
// that ends after all ranks have written does not end Save. The group is also aborted if a function of the program that a
// call uses panics or ends the goroutine (runtime.Goexit); the panic goes on. A panic of a method that stores a value of
// Parts is an error of the call on all ranks.
package dcp
