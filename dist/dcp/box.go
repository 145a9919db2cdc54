package dcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/tensor"
)

// box is a rectangle of a tensor.
type box struct{ Offsets, Shape []int }

func volume(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

func (b box) volume() int { return volume(b.Shape) }

// intersect returns what a and b have in common, and whether there is anything.
func (b box) intersect(a box) (box, bool) {
	c := box{make([]int, len(b.Shape)), make([]int, len(b.Shape))}
	for d := range b.Shape {
		c.Offsets[d] = max(a.Offsets[d], b.Offsets[d])
		c.Shape[d] = min(a.Offsets[d]+a.Shape[d], b.Offsets[d]+b.Shape[d]) - c.Offsets[d]
		if c.Shape[d] <= 0 {
			return c, false
		}
	}
	return c, true
}

// of returns the part c of a tensor t that is the box b.
func (b box) of(t *tensor.Tensor, c box) *tensor.Tensor {
	for d := range c.Shape {
		t = t.Narrow(d, c.Offsets[d]-b.Offsets[d], c.Shape[d])
	}
	return t
}

// cover returns, for each of the boxes, its intersection with b, nil if there is none, or an error unless these fill b without overlap.
func cover(b box, boxes []box) ([]*box, error) {
	in := make([]*box, len(boxes))
	var order []*box
	for i, x := range boxes {
		if c, ok := b.intersect(x); ok {
			in[i] = &c
			order = append(order, &c)
		}
	}
	slices.SortFunc(order, func(x, y *box) int { return slices.Compare(x.Offsets, y.Offsets) })
	n := 0
	for i, x := range order {
		for _, y := range order[i+1:] {
			if len(x.Shape) > 0 && y.Offsets[0] >= x.Offsets[0]+x.Shape[0] {
				break
			}
			if _, both := x.intersect(*y); both {
				return nil, fmt.Errorf("those of shape %v at %v and of shape %v at %v overlap", x.Shape, x.Offsets, y.Shape, y.Offsets)
			}
		}
		n += x.volume()
	}
	if want := b.volume(); n != want {
		return nil, fmt.Errorf("%d of %d elements are missing of the shape %v at %v", want-n, want, b.Shape, b.Offsets)
	}
	return in, nil
}

// chunk is a box in a file.
type chunk struct {
	box
	path  string
	dtype tensor.DType
}

type chunks []chunk

// global returns the shape of the whole tensor.
func (cs chunks) global() []int {
	shape := make([]int, len(cs[0].Shape))
	for _, c := range cs {
		for d := range shape {
			shape[d] = max(shape[d], c.Offsets[d]+c.Shape[d])
		}
	}
	return shape
}

// index is what a checkpoint has, by the tensors' names.
type index map[string]chunks

// saved is a checkpoint whose files are open, so that a replacement is not read.
type saved struct {
	index
	files map[string]*checkpoint.File // by path: those with wanted tensors, and the one with the values
}

func (s *saved) close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// open opens the checkpoint named dir. It starts over if another has replaced it meanwhile.
func open(ctx context.Context, dir string, wanted func(name string) bool) (at string, s *saved, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return "", nil, err
		}
		at = recovered(dir)
		d, err := os.Open(at) // while it is open, no other directory can be taken for it
		if errors.Is(err, fs.ErrNotExist) {
			if _, gone := os.Stat(recovered(dir)); gone == nil {
				continue
			}
		}
		if err != nil {
			return "", nil, err
		}
		s, err = scan(at, wanted)
		same := isAt(d, at) && recovered(dir) == at // otherwise the old one is being removed
		_ = d.Close()
		if same && err == nil {
			return at, s, nil
		}
		if err := errors.Join(err, s.close()); same {
			return "", nil, err
		}
	}
}

// isAt reports whether d is the directory at path.
func isAt(d *os.File, path string) bool {
	own, err := d.Stat()
	if err != nil {
		return false
	}
	here, err := os.Stat(path)
	return err == nil && os.SameFile(own, here)
}

// scan opens the files of a checkpoint and reads their headers. The caller closes the result, also after an error.
func scan(dir string, wanted func(name string) bool) (*saved, error) {
	all := &saved{index{}, map[string]*checkpoint.File{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return all, err
	}
	files := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".safetensors") {
			continue
		}
		files++
		path := filepath.Join(dir, e.Name())
		f, err := checkpoint.Load(path)
		if err != nil {
			return all, err
		}
		if e.Name() != valuesFile && !slices.ContainsFunc(f.Names(), wanted) {
			if err := f.Close(); err != nil {
				return all, err
			}
			continue
		}
		all.files[path] = f
		if e.Name() == valuesFile { // read by name; its tensors, such as those of an optimizer in State.Parts, are no shards
			continue
		}
		if err := tensor.WithScope(func() error { return all.add(path, f, wanted) }); err != nil {
			return all, err
		}
	}
	if len(entries) == 0 {
		return all, fmt.Errorf("%s: an empty directory: %w", dir, fs.ErrNotExist)
	}
	if files == 0 {
		return all, fmt.Errorf("%s: %w: a directory without safetensors files", dir, checkpoint.ErrFormat)
	}
	// Other programs may have written a box in several files.
	for name, cs := range all.index {
		slices.SortFunc(cs, func(a, b chunk) int {
			return cmp.Or(slices.Compare(a.Offsets, b.Offsets), slices.Compare(a.Shape, b.Shape))
		})
		all.index[name] = slices.CompactFunc(cs, func(a, b chunk) bool { return slices.Equal(a.Offsets, b.Offsets) && slices.Equal(a.Shape, b.Shape) })
	}
	return all, nil
}

// add adds the tensors of a file.
func (all index) add(path string, f *checkpoint.File, wanted func(name string) bool) error {
	var offsets map[string]sharding
	text, sharded := f.Metadata()[shardingKey]
	if sharded {
		if err := json.Unmarshal([]byte(text), &offsets); err != nil {
			return fmt.Errorf("%s: %w: %s: %v", path, checkpoint.ErrFormat, shardingKey, err)
		}
	}
	for _, name := range f.Names() {
		if !wanted(name) {
			continue
		}
		t := f.Tensor(name)
		if err := t.Err(); err != nil {
			return err
		}
		c := chunk{box{make([]int, t.Dim()), t.Shape()}, path, t.DType()}
		if sharded {
			c.Offsets = offsets[name].Offsets
		}
		ok := len(c.Offsets) == len(c.Shape) && (len(all[name]) == 0 || len(all[name][0].Shape) == len(c.Shape))
		for d := 0; ok && d < len(c.Shape); d++ {
			ok = c.Offsets[d] >= 0 && c.Offsets[d] <= math.MaxInt-c.Shape[d]
		}
		if !ok {
			return fmt.Errorf("%s: %w: tensor %.80q of shape %v has the offsets %v", path, checkpoint.ErrFormat, name, c.Shape, c.Offsets)
		}
		all[name] = append(all[name], c)
	}
	return nil
}

// read copies a box of a tensor in a file to a shard.
type read struct {
	to    Shard
	toBox box
	from  chunk
	what  box
}

// find adds to reads, by file, how to read the shard s, which p describes.
func (all index) find(s Shard, p part, reads map[string][]read) error {
	cs := all[s.Name]
	if cs == nil {
		return errors.New("it is not in the checkpoint")
	}
	if shape := cs.global(); !slices.Equal(shape, p.Global) {
		return fmt.Errorf("its shape is %v in the checkpoint and %v here", shape, p.Global)
	}
	boxes := make([]box, len(cs))
	for i, c := range cs {
		boxes[i] = c.box
	}
	in, err := cover(p.Box, boxes)
	if err != nil {
		return fmt.Errorf("%w: its shards: %w", checkpoint.ErrFormat, err)
	}
	for i, c := range in {
		if c != nil {
			reads[cs[i].path] = append(reads[cs[i].path], read{s, p.Box, cs[i], *c})
		}
	}
	return nil
}

// copyFrom copies what a file has to the shards.
func copyFrom(f *checkpoint.File, reads []read) error {
	for _, r := range reads {
		err := tensor.WithScope(func() error {
			from := r.from.of(f.Tensor(r.to.Name), r.what)
			return r.toBox.of(r.to.Tensor.Detach(), r.what).Copy_(from).Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}
