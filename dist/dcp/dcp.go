package dcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fxamacker/cbor/v2"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/optimstate"
	"github.com/linstock-ml/linstock/internal/refuse"
	parted "github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// Shard is this rank's part of a tensor: the rectangle of the shape of Tensor that begins at Offsets in a tensor of the
// shape Global. Without Global it is the whole tensor.
type Shard struct {
	Name            string
	Global, Offsets []int
	Tensor          *tensor.Tensor
}

// Sharded is a module with tensors that are parts of larger ones, such as a dist.ColwiseParallel. Sharding returns the shape
// of the whole of t and the offsets of t in it, or nil if t is not one of them, as in a group of one rank.
type Sharded interface {
	Sharding(t *tensor.Tensor) (global, offsets []int)
}

// Model returns the parameters and buffers of a model by their names in nn.StateDict, with a prefix. Tensors that no
// Sharded module has are whole: all ranks have the same, as with a dist.DDP. For a part whose Sharded module is outside
// model, and for one that two of them place differently, the Shard has a failed tensor, whose error Save and Load return;
// so has the first Shard if nn.StateDict finds an error, such as a merged nn.LoRALinear.
func Model(prefix string, model any) []Shard {
	var sharded []Sharded
	for _, m := range nn.NamedModules(model) {
		if s, ok := m.Module.(Sharded); ok {
			sharded = append(sharded, s)
		}
	}
	var all []Shard
	for _, n := range nn.StateDict(model) {
		s := Shard{Name: prefix + n.Name, Tensor: n.Tensor}
		parts := len(parted.Groups(n.Tensor))
		again := parts > 1 // a part that is divided again
		for _, m := range sharded {
			global, offsets := m.Sharding(n.Tensor)
			if global == nil {
				continue
			}
			again = again || s.Global != nil && (!slices.Equal(global, s.Global) || !slices.Equal(offsets, s.Offsets))
			s.Global, s.Offsets = global, offsets
		}
		if again || parts == 1 && s.Global == nil {
			s.Tensor = refuse.Tensor("dcp.Model", tensor.ErrArgument, "%s is a part of a tensor, and no module of the model knows which: "+
				"give Model the outermost result of dist.Shard; a part that is divided again needs a Shard of its own", s.Name)
		}
		all = append(all, s)
	}
	return all
}

// Optimizer is an *optim.Optimizer, a *dist.ZeroRedundancyOptimizer, or a type that embeds one. For another one, which has
// no method Groups or Part as these have, Save and Load return an error.
type Optimizer interface {
	StateDict() optim.State
	LoadStateDict(optim.State) error
}

// State is what a checkpoint contains, or what is to be loaded from one.
type State struct {
	Shards []Shard
	// Optimizer is nil for none. Its state for a parameter that is in Shards is divided as the parameter is. All its
	// parameters that are parts of tensors, such as rows of a dist.FSDPModule, must be in Shards.
	// The ranks have the same optimizer, or parts of one: in a pipeline, save each stage by itself.
	Optimizer Optimizer
	// Optimizers are further ones, such as that of a GAN's discriminator, by their names, which have no dots. The names of
	// their tensors begin with optimizer:NAME instead of optimizer.
	Optimizers map[string]Optimizer
	// Parts are values, which are equal on all ranks: those of rank 0 are saved. A name that another tensor of the checkpoint
	// has is an error, such as that of a checkpoint.Optimizer without a name beside Optimizer.
	Parts []checkpoint.Part
}

const (
	optimizerName = "optimizer" // of State.Optimizer
	tensorsKey    = "tensors"   // in an optimizer's values: the shapes of its tensors by their names
	valuesFile    = "values.safetensors"
	shardingKey   = "DCP_SHARDING_INFO" // in the metadata of a file
)

// statePrefix begins the names of the tensors of the optimizer with the name.
func statePrefix(optimizer string) string { return optimizer + ".state." }

// optimizers returns the optimizers by their names in the checkpoint.
func (s State) optimizers(op string) (map[string]Optimizer, error) {
	all := map[string]Optimizer{}
	for name, o := range s.Optimizers {
		if o == nil {
			return nil, refuse.Nil(op, fmt.Sprintf("an optimizer for State.Optimizers[%.80q]", name))
		}
		if strings.Contains(name, ".") { // the tensors of "a.state" could be those of "a"
			return nil, refuse.Error(op, tensor.ErrArgument, "State.Optimizers[%.80q]: an optimizer's name cannot have a dot", name)
		}
		all[optimizerName+":"+name] = o
	}
	if s.Optimizer != nil {
		all[optimizerName] = s.Optimizer
	}
	return all, nil
}

// sharding is an entry of a file's metadata.
type sharding struct {
	Offsets []int `json:"saved_offsets"`
}

// part describes a Shard to the other ranks.
type part struct {
	Name   string
	DType  int
	Global []int
	Box    box
}

// describe checks a shard.
func (s Shard) describe(op string) (part, error) {
	if err := refuse.Unusable(op, fmt.Sprintf("%.80q", s.Name), s.Tensor); err != nil {
		return part{}, err
	}
	shape := s.Tensor.Shape()
	p := part{s.Name, int(s.Tensor.DType()), s.Global, box{s.Offsets, shape}}
	if s.Global == nil && s.Offsets == nil {
		p.Global, p.Box.Offsets = shape, make([]int, len(shape))
	}
	ok := len(p.Global) == len(shape) && len(p.Box.Offsets) == len(shape)
	for d := 0; ok && d < len(shape); d++ {
		ok = p.Box.Offsets[d] >= 0 && shape[d] <= p.Global[d] && p.Box.Offsets[d] <= p.Global[d]-shape[d]
	}
	if !ok {
		return part{}, refuse.Error(op, tensor.ErrArgument, "%.80q: a shard of shape %v at %v is not in a tensor of shape %v", s.Name, shape, s.Offsets, s.Global)
	}
	return p, nil
}

// parameters returns the parameters of which the optimizer has the state on this rank, by their numbers.
func parameters(op string, o Optimizer) (map[int]*tensor.Tensor, error) {
	switch o := o.(type) {
	case interface{ Part() map[int]*tensor.Tensor }:
		return o.Part(), nil
	case interface{ Groups() []*optim.Group }:
		all := map[int]*tensor.Tensor{}
		for _, g := range o.Groups() {
			for _, p := range g.Params {
				all[len(all)] = p
			}
		}
		return all, nil
	}
	return nil, refuse.Error(op, tensor.ErrArgument, "the parameters of a %T, the optimizer, are not known: it must be an *optim.Optimizer, "+
		"a *dist.ZeroRedundancyOptimizer, or a type that embeds one", o)
}

// number returns the number of the parameter of an optimizer whose state has the name.
func number(optimizer, name string) int {
	digits, _, _ := strings.Cut(strings.TrimPrefix(name, statePrefix(optimizer)), ".")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return n
}

// find returns the element of Shards that is t, or nil.
func (s State) find(t *tensor.Tensor) *Shard {
	i := slices.IndexFunc(s.Shards, func(x Shard) bool { return x.Tensor == t && t != nil })
	if i < 0 {
		return nil
	}
	return &s.Shards[i]
}

// shardOf is find for a t that is divided, whose state has the name; nil for another t.
func (s State) shardOf(op, name string, t *tensor.Tensor) (*Shard, error) {
	if of := s.find(t); of != nil && of.Global != nil {
		return of, nil
	}
	if len(parted.Groups(t)) > 0 {
		return nil, refuse.Error(op, tensor.ErrArgument, "%s is the state of a part of a tensor, and State.Shards has no Shard that knows which: "+
			"add Model of the outermost result of dist.Shard, or of the model with its parallel layers", name)
	}
	return nil, nil
}

// all returns the shards with those of the optimizers, and by the optimizers' names what they have besides.
func (s State) all(op string) (shards []Shard, numbered map[string]numbering, plain map[string]map[string]any, err error) {
	optimizers, err := s.optimizers(op)
	if err != nil {
		return nil, nil, nil, err
	}
	shards, numbered, plain = slices.Clone(s.Shards), map[string]numbering{}, map[string]map[string]any{}
	for _, optimizer := range slices.Sorted(maps.Keys(optimizers)) {
		params, err := parameters(op, optimizers[optimizer])
		if err != nil {
			return nil, nil, nil, err
		}
		rest, tensors := optimstate.Flatten(optimizers[optimizer].StateDict())
		for _, name := range slices.Sorted(maps.Keys(tensors)) {
			x := Shard{Name: optimizer + "." + name, Tensor: tensors[name]}
			p := params[number(optimizer, x.Name)]
			of, err := s.shardOf(op, x.Name, p)
			if err != nil {
				return nil, nil, nil, err
			}
			if of != nil {
				switch {
				case slices.Equal(p.Shape(), x.Tensor.Shape()):
					x.Global, x.Offsets = of.Global, of.Offsets
				case x.Tensor.Numel() > 1:
					return nil, nil, nil, refuse.Error(op, tensor.ErrArgument, "%s of shape %v is the state of a sharded parameter of shape %v", x.Name, x.Tensor.Shape(), p.Shape())
				}
			}
			shards = append(shards, x)
		}
		if numbered[optimizer], err = s.numbering(params, rest); err != nil {
			return nil, nil, nil, err
		}
		plain[optimizer] = rest
	}
	return shards, numbered, plain, nil
}

// numbering is how an optimizer of a rank numbers its parameters.
type numbering struct {
	State  []byte         // its state besides tensors, by the parameters' numbers, in CBOR
	Groups []int          // how many parameters its groups have
	Names  map[int]string // of the parameters that are in Shards
}

// numbering returns the numbering of an optimizer with these parameters and values.
func (s State) numbering(params map[int]*tensor.Tensor, plain map[string]any) (n numbering, err error) {
	all, _ := plain["param_groups"].([]any)
	for _, v := range all {
		group, _ := v.(map[string]any)
		numbers, _ := group["params"].([]any)
		n.Groups = append(n.Groups, len(numbers))
	}
	n.Names = map[int]string{}
	for i, p := range params {
		if of := s.find(p); of != nil {
			n.Names[i] = of.Name
		}
	}
	n.State, err = cbor.Marshal(plain["state"])
	return n, err
}

// plan is what a rank has to save.
type plan struct {
	Parts      []part
	Optimizers map[string]numbering // by their names
	Dir        string               // where the checkpoint is to be
	Tmp        string               // of rank 0: where to write
	Mode       fs.FileMode          // of rank 0: the permissions of the files; 0: those of any new file
	Err        string
}

// gather returns v of all ranks; without a group there is one. If ctx has ended, it aborts the group, since the other
// ranks wait for this one.
func gather[T any](ctx context.Context, g *dist.Group, v T) ([]T, error) {
	if g == nil {
		return []T{v}, ctx.Err()
	}
	all, err := dist.AllGatherObject(ctx, g, v)
	if err != nil && ctx.Err() != nil {
		_ = g.Abort()
	}
	return all, err
}

// agree returns an error on all ranks if one of them has one.
func agree(ctx context.Context, g *dist.Group, op string, err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	all, failure := gather(ctx, g, text)
	if failure != nil {
		return errors.Join(err, failure)
	}
	return first(op, all, err)
}

// prefix begins the errors of all packages.
const prefix = "linstock: "

// RankError is what the other ranks get when a rank has failed to save or load, for example because its disk is full.
type RankError struct {
	Rank    int
	Op      string // "dcp.Save"
	Message string // of that rank's error
}

// Error returns the rank, the call and the rank's message.
func (e *RankError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf(prefix+"%s: on rank %d: %s", e.Op, e.Rank, e.Message)
}

// first returns own, or the error of the first rank that has one.
func first(op string, texts []string, own error) error {
	switch {
	case own == nil:
	case strings.HasPrefix(own.Error(), prefix):
		return own
	default:
		return fmt.Errorf(prefix+"%s: %w", op, own)
	}
	for r, text := range texts {
		if text != "" {
			return &RankError{r, op, strings.TrimPrefix(text, prefix)}
		}
	}
	return nil
}

// saver is a save in progress.
type saver struct {
	op       string
	g        *dist.Group
	dir, tmp string
	rank     int
	lock     *os.File           // of rank 0, or nil
	only     bool               // the lock keeps all other saves out
	mode     fs.FileMode        // of the files; 0: that of any new file
	files    []map[string]Shard // what this rank writes
	written  []string           // the files that this rank has written
	copies   []*tensor.Tensor
	err      error // of what this rank has written so far
}

// Save writes state to the directory dir, as the package documentation says. All ranks of g call it with the same dir; g
// may be nil for one process without a group. If there is a checkpoint at dir, it is replaced. It is an error if dir
// contains anything else or the current directory of a rank's process. Tensors of the same name must have the same
// dtype and whole shape on all ranks, and the ranks' shards must cover it. After an error dir has what it had before. It
// may have the new checkpoint if the error is a *dist.PeerError, if the ctx of a rank of a group has ended, or if the
// directory of dir could not be synced. PyTorch: torch.distributed.checkpoint.save.
func Save(ctx context.Context, g *dist.Group, dir string, state State) error {
	s, err := start(ctx, "dcp.Save", g, dir, state, false)
	if err != nil {
		return err
	}
	return guard(func() error { return s.finish(ctx) }, s.leave)
}

// Saving is a save in progress. Several goroutines may use it.
type Saving struct {
	done chan struct{}
	err  error
}

// SaveAsync copies what this rank has to write to the CPU's memory, writes Parts, and returns; a goroutine writes the
// tensors. It ends when the checkpoint is saved, or with an error. Until then g must not be used for anything else, and
// another save to dir is an error: give it a group of its own, from NewGroup, whose timeout is longer than a rank may
// write. If ctx ends before all ranks have written, the group is aborted. PyTorch:
// torch.distributed.checkpoint.async_save.
func SaveAsync(ctx context.Context, g *dist.Group, dir string, state State) (*Saving, error) {
	s, err := start(ctx, "dcp.SaveAsync", g, dir, state, true)
	if err != nil {
		return nil, err
	}
	w := &Saving{done: make(chan struct{}), err: errors.New("dcp.SaveAsync: ctx ended the goroutine that saves")}
	go func() {
		defer close(w.done)
		w.err = guard(func() error { return s.finish(ctx) }, s.leave)
	}()
	return w, nil
}

// Wait waits until the checkpoint is saved and returns the error of the save. If ctx ends first, Wait returns its error,
// and the save goes on.
func (w *Saving) Wait(ctx context.Context) error {
	if w == nil {
		return refuse.Nil("dcp.Wait", "a save")
	}
	if ctx == nil {
		return refuse.Nil("dcp.Wait", "a context")
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done reports whether the save has ended, with or without an error.
func (w *Saving) Done() bool {
	if w == nil {
		return false
	}
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// guard calls f, and leave if f panics or ends the goroutine, as functions of the program that it calls may.
func guard(f func() error, leave func()) error {
	returned := false
	defer func() {
		if !returned {
			leave()
		}
	}()
	err := f()
	returned = true
	return err
}

// leave removes what was written and aborts the group, since the other ranks wait for this one.
func (s *saver) leave() {
	_ = s.discard()
	_ = s.g.Abort()
}

// start begins a save.
func start(ctx context.Context, op string, g *dist.Group, dir string, state State, copied bool) (*saver, error) {
	if err := refuse.Ended(op, ctx, dist.ErrTimeout); err != nil {
		return nil, err
	}
	s := &saver{op: op, g: g, rank: max(0, g.Rank()), dir: located(dir)}
	return s, guard(func() error { return s.begin(ctx, dir, state, copied) }, s.leave)
}

// begin agrees with the other ranks on who writes what, and writes the values.
func (s *saver) begin(ctx context.Context, dir string, state State, copied bool) error {
	var own plan
	shards, numbered, plain, err := state.all(s.op)
	for i := 0; err == nil && i < len(shards); i++ {
		var p part
		p, err = shards[i].describe(s.op)
		own.Parts = append(own.Parts, p)
	}
	if err == nil {
		err = nameable(dir)
	}
	if err == nil && s.rank == 0 {
		if err = s.reserve(); err == nil {
			s.tmp, s.mode, err = prepare(s.dir, s.only)
		}
	}
	own.Optimizers, own.Dir, own.Tmp, own.Mode = numbered, s.dir, s.tmp, s.mode
	if err != nil {
		own.Err = err.Error()
	}
	plans, failure := gather(ctx, s.g, own)
	if failure != nil {
		return errors.Join(err, failure, s.discard())
	}
	var texts []string
	for _, p := range plans {
		texts = append(texts, p.Err)
	}
	var mine []int
	if err = first(s.op, texts, err); err == nil {
		if err = oneDir(plans); err == nil {
			err = sameOptimizers(plans)
		}
		if err == nil {
			mine, err = assign(plans, s.rank)
		}
		if err != nil { // the same on all ranks
			err = fmt.Errorf(prefix+"%s: %w", s.op, err)
		}
	}
	if err != nil {
		return errors.Join(err, s.discard())
	}
	s.tmp, s.mode = plans[0].Tmp, plans[0].Mode
	if s.rank == 0 {
		s.err = s.writeValues(state.Parts, plain, plans)
	}
	for _, i := range mine {
		if x := shards[i]; s.err == nil {
			if copied {
				x.Tensor = copyOf(x.Tensor)
				s.copies = append(s.copies, x.Tensor)
				s.err = x.Tensor.Err()
			}
			x.Offsets = slices.Clone(own.Parts[i].Box.Offsets) // the program may change its own after SaveAsync
			s.add(x)
		}
	}
	return nil
}

// copyOf returns a copy on the CPU, which the caller releases.
func copyOf(t *tensor.Tensor) *tensor.Tensor {
	return tensor.Tidy(func() *tensor.Tensor {
		x := t.Detach()
		if x.Device() == tensor.CPU {
			return x.Clone()
		}
		return x.To(tensor.CPU)
	}).Keep()
}

// add adds a shard to the first file that has none of its name.
func (s *saver) add(x Shard) {
	for _, f := range s.files {
		if _, ok := f[x.Name]; !ok {
			f[x.Name] = x
			return
		}
	}
	s.files = append(s.files, map[string]Shard{x.Name: x})
}

// writeValues writes the values, among them what the optimizers of all ranks have besides tensors.
func (s *saver) writeValues(parts []checkpoint.Part, plain map[string]map[string]any, plans []plan) error {
	taken := map[string]bool{} // the names of tensors that parts must not have
	for _, p := range plans {
		for _, x := range p.Parts {
			taken[x.Name] = true
		}
	}
	var all []checkpoint.Part
	for _, optimizer := range slices.Sorted(maps.Keys(plain)) {
		taken[optimizer] = true // of this optimizer as a part, which may have no state yet
		state, shapes := map[string]map[string]cbor.RawMessage{}, map[string]string{}
		for _, p := range plans {
			for _, x := range p.Parts {
				if strings.HasPrefix(x.Name, statePrefix(optimizer)) {
					shapes[x.Name] = fmt.Sprint(x.Global)
				}
			}
			n, ok := p.Optimizers[optimizer]
			if !ok {
				continue
			}
			var of map[string]map[string]cbor.RawMessage
			if err := cbor.Unmarshal(n.State, &of); err != nil {
				return err
			}
			maps.Copy(state, of)
		}
		values := plain[optimizer]
		values["state"], values[tensorsKey] = state, shapes
		all = append(all, checkpoint.Value(optimizer, &values))
	}
	if all = append(all, parts...); len(all) == 0 {
		return nil
	}
	return s.save(valuesFile, func(path string) error {
		if err := checkpoint.SaveValues(path, all...); err != nil {
			return err
		}
		f, err := checkpoint.Load(path, checkpoint.Mapped(false))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		// PyTorch reads the tensors of all files by their names.
		if i := slices.IndexFunc(f.Names(), func(name string) bool { return taken[name] }); i >= 0 {
			return refuse.Error(s.op, tensor.ErrArgument, "State.Parts has the name %.80q, which another tensor or an optimizer has: give the part another name; "+
				"further optimizers belong in State.Optimizers", f.Names()[i])
		}
		return nil
	})
}

// save writes a file by f.
func (s *saver) save(base string, f func(path string) error) error {
	path := filepath.Join(s.tmp, base)
	s.written = append(s.written, base)
	if err := create(path, s.mode); err != nil {
		return err
	}
	return f(path)
}

// write writes this rank's files.
func (s *saver) write() error {
	return tensor.WithScope(func() error {
		for i, shards := range s.files {
			tensors, offsets := map[string]*tensor.Tensor{}, map[string]sharding{}
			for name, x := range shards {
				tensors[name] = x.Tensor.Detach() // Save takes a rank's part of a parameter for a mistake
				offsets[name] = sharding{append([]int{}, x.Offsets...)}
			}
			text, err := json.Marshal(offsets)
			if err != nil {
				return err
			}
			base := fmt.Sprintf("shard-%05d-model-%05d-of-%05d.safetensors", s.rank+1, i+1, len(s.files))
			if err := s.save(base, func(path string) error {
				return checkpoint.Save(path, tensors, map[string]string{shardingKey: string(text), "DCP_VERSION": "1.0", "format": "pt"})
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// written is what a rank has written.
type written struct {
	Files []string
	Err   string
}

// finish writes the files and makes them the checkpoint if all ranks have succeeded.
func (s *saver) finish(ctx context.Context) error {
	if s.err == nil {
		s.err = s.write()
	}
	for _, t := range s.copies {
		t.Release()
	}
	own := written{Files: s.written}
	if s.err != nil {
		own.Err = s.err.Error()
	}
	all, err := gather(ctx, s.g, own)
	if err != nil {
		return errors.Join(s.err, err, s.discard())
	}
	var files, texts []string
	for _, w := range all {
		files, texts = append(files, w.Files...), append(texts, w.Err)
	}
	if err := first(s.op, texts, s.err); err != nil {
		return errors.Join(err, s.discard())
	}
	if s.rank == 0 {
		if err = complete(s.tmp, files); err == nil {
			err = commit(s.tmp, s.dir)
		}
		if err != nil {
			err = errors.Join(err, s.discard())
		}
		s.unreserve()
	}
	// The checkpoint is in place or not, also if ctx has ended meanwhile.
	return agree(context.WithoutCancel(ctx), s.g, s.op, err)
}

// Load sets the shards, the optimizer and the parts of state to those of the checkpoint in dir, which Save or PyTorch
// has written, with any number of ranks. All ranks of g call it; g may be nil for one process without a group. What the
// checkpoint has besides is ignored. Tensors are converted to the dtypes and devices of the shards; their whole shapes
// must be those of the checkpoint. It is an error if a shard is on the meta device, which has no memory: call
// nn.ToEmpty for the module first. Without an error on any rank all ranks return nil; after an error some tensors may
// have changed. The error is an fs.ErrNotExist if there is no directory dir, or an empty one. If Save replaces the
// checkpoint meanwhile, each rank reads either the old one or the new one. PyTorch: torch.distributed.checkpoint.load.
func Load(ctx context.Context, g *dist.Group, dir string, state State) error {
	const op = "dcp.Load"
	if err := refuse.Ended(op, ctx, dist.ErrTimeout); err != nil {
		return err
	}
	err := guard(
		func() error { return tensor.WithScope(func() error { return load(ctx, op, located(dir), state) }) },
		func() { _ = g.Abort() }, // the other ranks wait for this one
	)
	return agree(ctx, g, op, err)
}

// whole returns an error unless the checkpoint has the optimizer's tensors that Save has listed in its values. Without
// them, an optimizer would restart with new state. Older checkpoints have no list.
func (all index) whole(plain map[string]any) error {
	shapes, _ := plain[tensorsKey].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		cs := all[name]
		if cs == nil || fmt.Sprint(cs.global()) != shapes[name] {
			return fmt.Errorf("%w: tensor %.80q of shape %v is missing, or a part of it: a file may have been removed", checkpoint.ErrFormat, name, shapes[name])
		}
	}
	return nil
}

// hasMemory returns an error for a tensor on the meta device, to which Copy_ copies nothing. name names it.
func hasMemory(op, name string, t *tensor.Tensor) error {
	if t.Device() != tensor.Meta {
		return nil
	}
	return refuse.Error(op, tensor.ErrArgument, "%.80q is on the meta device, and has no memory for values: call nn.ToEmpty for the module before Load", name)
}

func load(ctx context.Context, op, dir string, state State) (err error) {
	targets := slices.Clone(state.Shards)
	names := map[string]bool{}
	for _, s := range targets {
		names[s.Name] = true
	}
	optimizers, err := state.optimizers(op)
	if err != nil {
		return err
	}
	order := slices.Sorted(maps.Keys(optimizers))
	dir, saved, err := open(ctx, dir, func(name string) bool {
		return names[name] || slices.ContainsFunc(order, func(optimizer string) bool { return strings.HasPrefix(name, statePrefix(optimizer)) })
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, saved.close()) }()
	values := saved.files[filepath.Join(dir, valuesFile)]
	if values == nil && (len(order) > 0 || len(state.Parts) > 0) {
		// Not fs.ErrNotExist: the checkpoint exists.
		return refuse.Error(op, checkpoint.ErrFormat, "the checkpoint %s has no values (%s), which optimizers and State.Parts need; "+
			"PyTorch writes tensors only", dir, valuesFile)
	}
	plain, tensors := map[string]map[string]any{}, map[string]map[string]*tensor.Tensor{} // of the optimizers
	for _, optimizer := range order {
		var rest map[string]any
		if err := values.LoadValues(checkpoint.Value(optimizer, &rest)); err != nil {
			return err
		}
		if err := saved.whole(rest); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		params, err := parameters(op, optimizers[optimizer])
		if err != nil {
			return err
		}
		plain[optimizer], tensors[optimizer] = rest, map[string]*tensor.Tensor{}
		for _, name := range slices.Sorted(maps.Keys(saved.index)) {
			p := params[number(optimizer, name)]
			if !strings.HasPrefix(name, statePrefix(optimizer)) || p == nil { // another rank's
				continue
			}
			if err := hasMemory(op, "the parameter of "+name, p); err != nil {
				return err
			}
			x := Shard{Name: name}
			shape := saved.index[name].global()
			of, err := state.shardOf(op, name, p)
			if err != nil {
				return err
			}
			if of != nil && slices.Equal(shape, of.Global) {
				x.Global, x.Offsets, shape = of.Global, of.Offsets, p.Shape()
			}
			x.Tensor = tensor.Empty(shape, saved.index[name][0].dtype)
			tensors[optimizer][strings.TrimPrefix(name, optimizer+".")] = x.Tensor
			targets = append(targets, x)
		}
	}
	reads := map[string][]read{}
	for _, s := range targets {
		p, err := s.describe(op)
		if err != nil {
			return err
		}
		if err := hasMemory(op, s.Name, s.Tensor); err != nil {
			return err
		}
		if err := saved.find(s, p, reads); err != nil {
			return fmt.Errorf("%s: tensor %.80q: %w", dir, s.Name, err)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(reads)) {
		if err := copyFrom(saved.files[path], reads[path]); err != nil {
			return err
		}
	}
	for _, optimizer := range order {
		s, err := optimstate.Unflatten(plain[optimizer], tensors[optimizer])
		if err != nil {
			return err
		}
		if err := optimizers[optimizer].LoadStateDict(s); err != nil {
			return err
		}
	}
	if len(state.Parts) == 0 {
		return nil
	}
	return values.LoadValues(state.Parts...)
}

// sameOptimizers returns an error unless the ranks have the same optimizers, or parts of the same.
func sameOptimizers(plans []plan) error {
	all := map[string]bool{}
	for _, p := range plans {
		for optimizer := range p.Optimizers {
			all[optimizer] = true
		}
	}
	for _, optimizer := range slices.Sorted(maps.Keys(all)) {
		if err := oneOptimizer(optimizer, plans); err != nil {
			return err
		}
	}
	return nil
}

// oneOptimizer returns an error unless the ranks have parts of one optimizer of this name, which numbers its parameters
// alike on all.
func oneOptimizer(optimizer string, plans []plan) error {
	const advice = "save each stage of a pipeline by itself, to a directory of its own with a nil group"
	root, ok := plans[0].Optimizers[optimizer]
	at := map[int]int{} // by the numbers of parameters: the first rank that has its name
	for r, p := range plans {
		own, has := p.Optimizers[optimizer]
		switch {
		case !has:
			continue
		case !ok:
			return fmt.Errorf("rank %d has the %s and rank 0 has none: %s", r, optimizer, advice)
		case !slices.Equal(own.Groups, root.Groups):
			return fmt.Errorf("the %s has groups of %v parameters on rank 0 and of %v on rank %d: %s", optimizer, root.Groups, own.Groups, r, advice)
		}
		for _, i := range slices.Sorted(maps.Keys(own.Names)) {
			if _, ok := at[i]; !ok {
				at[i] = r
			}
			if name := plans[at[i]].Optimizers[optimizer].Names[i]; name != own.Names[i] {
				return fmt.Errorf("parameter %d of the %s is %.80q on rank %d and %.80q on rank %d: %s", i, optimizer, name, at[i], own.Names[i], r, advice)
			}
		}
	}
	return nil
}

// oneDir returns an error if the ranks are to write to different directories.
func oneDir(plans []plan) error {
	for r, p := range plans {
		if p.Dir != plans[0].Dir {
			return fmt.Errorf("rank 0 saves to %q and rank %d to %q: want one directory", plans[0].Dir, r, p.Dir)
		}
	}
	return nil
}

// assign returns which of its parts a rank writes. A box that several ranks have is written by the one with the least to write.
func assign(plans []plan, rank int) (mine []int, err error) {
	type candidate struct {
		part
		bytes int
		ranks []int
		index []int // in the plans of the ranks
	}
	var all []*candidate
	have := map[string]*candidate{}
	byName := map[string][]box{}
	wholes := map[string]candidate{}
	for r, p := range plans {
		for i, x := range p.Parts {
			n := x.Box.volume()
			if n == 0 && volume(x.Global) != 0 {
				n = -1 // needs not be written, but must agree with the others
			}
			w, ok := wholes[x.Name]
			if !ok {
				w = candidate{part: x, ranks: []int{r}}
				wholes[x.Name] = w
			}
			if w.DType != x.DType || !slices.Equal(w.Global, x.Global) {
				return nil, fmt.Errorf("tensor %.80q is %v%v on rank %d and %v%v on rank %d", x.Name,
					tensor.DType(w.DType), w.Global, w.ranks[0], tensor.DType(x.DType), x.Global, r)
			}
			if n < 0 {
				continue
			}
			key := fmt.Sprint(x.Box, x.Name)
			c := have[key]
			if c == nil {
				c = &candidate{part: x, bytes: n * tensor.DType(x.DType).Size()}
				have[key] = c
				all = append(all, c)
				byName[x.Name] = append(byName[x.Name], x.Box)
			}
			if k := len(c.ranks); k > 0 && c.ranks[k-1] == r {
				return nil, fmt.Errorf("rank %d has the same shard of tensor %.80q twice", r, x.Name)
			}
			c.ranks, c.index = append(c.ranks, r), append(c.index, i)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wholes)) {
		global := wholes[name].Global
		if _, err := cover(box{make([]int, len(global)), global}, byName[name]); err != nil {
			return nil, fmt.Errorf("the ranks' shards of tensor %.80q: %w", name, err)
		}
	}
	slices.SortStableFunc(all, func(a, b *candidate) int { return cmp.Compare(b.bytes, a.bytes) })
	written := make([]int, len(plans))
	for _, c := range all {
		least := 0
		for k, r := range c.ranks {
			if written[r] < written[c.ranks[least]] {
				least = k
			}
		}
		r := c.ranks[least]
		if written[r] += c.bytes; r == rank {
			mine = append(mine, c.index[least])
		}
	}
	return mine, nil
}
