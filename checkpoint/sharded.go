package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/internal/syncdir"
	"github.com/linstock-ml/linstock/tensor"
)

// An index lists, for each tensor, the file that contains it: a safetensors file, or one of torch.save in the form that
// Hugging Face's libraries wrote before.

type index struct {
	Metadata  map[string]any    `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"`
}

func isJSON(head []byte) bool {
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	return bytes.HasPrefix(head, []byte("{"))
}

func isIndex(text []byte) bool {
	return bytes.Contains(text, []byte(`"weight_map"`)) || bytes.Contains(text, []byte(`"total_size"`))
}

// maxShards is the most files that an index may list.
const maxShards = 4096

// shards are the files of an index.
type shards struct {
	files map[string]*File // by the tensor's name
	all   []*File
}

// readIndex reads an index, or returns nil if the JSON text is none.
func readIndex(f *File, head []byte, s settings) (contents, error) {
	if f.size > maxHeader {
		if !isIndex(head) {
			return nil, nil
		}
		return nil, malformed("an index of %d bytes; %d are allowed", f.size, maxHeader)
	}
	text := make([]byte, f.size)
	if _, err := io.ReadFull(io.NewSectionReader(f.file, 0, f.size), text); err != nil {
		return nil, shortened(err)
	}
	if !isIndex(text) { // the metadata before the names may be long
		return nil, nil
	}
	var i index
	decoder := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))))
	decoder.UseNumber() // the total size as it is written
	if err := decoder.Decode(&i); err != nil {
		return nil, malformed("the index: %v", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, malformed("unexpected data after the index")
	}
	if i.WeightMap == nil {
		return nil, malformed("the index has no weight_map")
	}
	f.header.metadata = map[string]string{}
	for k, v := range i.Metadata {
		f.header.metadata[k] = fmt.Sprint(v)
	}
	out := &shards{files: make(map[string]*File, len(i.WeightMap))}
	if err := out.load(filepath.Dir(f.file.Name()), i.WeightMap, s); err != nil {
		return nil, errors.Join(err, out.close())
	}
	return out, nil
}

func (s *shards) load(dir string, weights map[string]string, settings settings) error {
	opened := map[string]*File{}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		base := weights[name]
		if base != filepath.Base(base) || !filepath.IsLocal(base) || strings.ContainsAny(base, `/\`) {
			return malformed("the file %s is not beside the index", quoted(base))
		}
		file := opened[base]
		if file == nil {
			if len(opened) == maxShards {
				return malformed("more than %d files", maxShards)
			}
			var err error
			if file, err = loadShard(filepath.Join(dir, base), settings); err != nil {
				return fmt.Errorf("the file %s: %w", quoted(base), err)
			}
			opened[base] = file
			s.all = append(s.all, file)
		}
		if !file.Has(name) {
			return malformed("the file %s has no tensor %s", quoted(base), quoted(name))
		}
		s.files[name] = file
	}
	return nil
}

func loadShard(path string, s settings) (*File, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	s.shard = true
	file, err := load(f, s)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	file.path = path
	return file, nil
}

func (s *shards) names() []string { return slices.Sorted(maps.Keys(s.files)) }

func (s *shards) has(name string) bool { return s.files[name] != nil }

func (s *shards) tensor(name string) (*tensor.Tensor, error) {
	f := s.files[name]
	if f == nil {
		return nil, errNoTensor
	}
	t, err := f.tensor(name)
	return t, f.inShard(err)
}

// inShard adds the name of a file of an index to an error.
func (f *File) inShard(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the file %s: %w", quoted(filepath.Base(f.path)), err)
}

func (s *shards) tensors(accept func(name string) bool, add adder) error {
	for _, f := range s.all {
		err := f.each(func(name string) bool { return s.files[name] == f && accept(name) },
			func(name string, t *tensor.Tensor, err error) error { return add(name, t, f.inShard(err)) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *shards) value(name string) (any, error) {
	t, err := s.tensor(name)
	if err == errNoTensor {
		err = errNoValue
	}
	return t, err
}

func (s *shards) close() error {
	var err error
	for _, f := range s.all {
		err = errors.Join(err, f.Close())
	}
	return err
}

// SaveSharded writes tensors to several safetensors files of at most maxBytes bytes of data each (a larger tensor has a
// file of its own), at most 4096, and the index of these files, which Load, LoadModel and the libraries of Hugging Face
// open:
//
//	DIR/model-00001-of-00003.safetensors
//	…
//	DIR/model.safetensors.index.json
//
// DIR is created if necessary. The files contain the tensors in the order of their names. Other programs see the old or
// the new index. All files are written beside the old ones before the first is renamed, so that after an error, for
// example because the disk is full, the old ones are there unchanged. When the index is there, the files
// model-XXXXX-of-YYYYY.safetensors that it does not list, of an earlier SaveSharded, are removed; a crash can leave
// them until the next SaveSharded. If the numbers of files are equal, the new files replace those that the old index
// lists a moment before the new index is there: save to another directory to keep both. An older model.safetensors in
// DIR is left, and Hugging Face's libraries load it instead of the index: remove it.
//
// Python: huggingface_hub.save_torch_state_dict.
func SaveSharded(dir string, tensors map[string]*tensor.Tensor, metadata map[string]string, maxBytes int64) error {
	const op = "SaveSharded"
	if maxBytes < 1 {
		return saved(op, fmt.Errorf("maxBytes must be at least 1, got %d", maxBytes))
	}
	all := make(map[string]content, len(tensors))
	for name, t := range tensors {
		c, err := contentOf(t)
		if err != nil {
			return saved(op, fmt.Errorf("tensor %s: %w", quoted(name), err))
		}
		all[name] = c
	}
	var parts []map[string]content
	total, left := int64(0), int64(-1)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		n := all[name].bytes()
		if total += n; left < n || len(parts) == 0 {
			parts = append(parts, map[string]content{})
			left = maxBytes
		}
		left -= n
		parts[len(parts)-1][name] = all[name]
	}
	if len(parts) > maxShards {
		return saved(op, fmt.Errorf("the tensors would take %d files of %d bytes, and an index may list %d; use a larger maxBytes", len(parts), maxBytes, maxShards))
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return saved(op, err)
	}
	i := struct {
		Metadata  map[string]any    `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}{map[string]any{}, map[string]string{}}
	for k, v := range metadata {
		i.Metadata[k] = v
	}
	i.Metadata["total_size"] = total
	var files []*staged
	defer func() {
		for _, f := range files {
			f.discard()
		}
	}()
	for n, part := range parts {
		base := fmt.Sprintf("model-%05d-of-%05d.safetensors", n+1, len(parts))
		write, err := writer(part, metadata)
		if err != nil {
			return saved(op, err)
		}
		f, err := stage(filepath.Join(dir, base), write)
		if err != nil {
			return saved(op, err)
		}
		files = append(files, f)
		for name := range part {
			i.WeightMap[name] = base
		}
	}
	text, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return saved(op, err)
	}
	f, err := stage(filepath.Join(dir, "model.safetensors.index.json"), func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return saved(op, err)
	}
	files = append(files, f)
	for _, f := range files { // all before the first replaces another: the disk may be full
		if err := f.file.Sync(); err != nil {
			return saved(op, err)
		}
	}
	for n, f := range files {
		if n == len(parts) { // the index, which must not be there before the others
			err = syncdir.Sync(f.dir)
		}
		if err == nil {
			err = f.replace()
		}
		if err != nil {
			return saved(op, err)
		}
	}
	return saved(op, errors.Join(syncdir.Sync(f.dir), removeShards(dir, i.WeightMap)))
}

// shardName is the name of a file of SaveSharded.
var shardName = regexp.MustCompile(`^model-\d{5,}-of-\d{5,}\.safetensors$`)

// removeShards removes the files of earlier saves, which the index does not list.
func removeShards(dir string, weights map[string]string) error {
	listed := map[string]bool{}
	for _, base := range weights {
		listed[base] = true
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !listed[e.Name()] && shardName.MatchString(e.Name()) && !e.IsDir() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
