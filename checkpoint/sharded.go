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
	"strconv"
	"strings"
	"sync"

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

// readIndex reads an index, or returns nil if the JSON text is not one.
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
	dir, _ := filepath.Split(f.file.Name()) // not cleaned: a .. may follow a link
	if err := out.load(dir, i.WeightMap, s); err != nil {
		return nil, errors.Join(err, out.close())
	}
	return out, nil
}

func (s *shards) load(dir string, weights map[string]string, settings settings) error {
	opened := map[string]*File{}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		base := weights[name]
		if base != filepath.Base(base) || !filepath.IsLocal(base) || strings.ContainsAny(base, `/\`) {
			return malformed("the file %s is not in the directory of the index", quoted(base))
		}
		file := opened[base]
		if file == nil {
			if len(opened) == maxShards {
				return malformed("more than %d files", maxShards)
			}
			var err error
			if file, err = loadShard(dir+base, settings); err != nil {
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
// DIR is created if necessary. The files contain the tensors in the order of their names. The index and each file have the
// metadata, nil for none; in a file "format" is "pt" unless metadata has another, because transformers refuses files
// without it. Other programs see the old or the complete new checkpoint, even after a crash or an error such as a full
// disk. The new files have names that no
// other file has, model-2-00001-of-00003.safetensors in the second save to DIR, and then the new index replaces the old
// one. After that the files model-XXXXX-of-YYYYY.safetensors and model-N-XXXXX-of-YYYYY.safetensors that no index in
// DIR (*.index.json) lists, of earlier saves, are removed; a crash can leave them until the next SaveSharded. A program
// that has read the old index and finds its files removed must read the index again, as Load does. SaveSharded waits
// while another goroutine saves to DIR; only one process may save to a directory at a time. An older model.safetensors in
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
	dir, err := filepath.EvalSymlinks(dir) // before Join: a .. may follow a link
	if err != nil {
		return saved(op, err)
	}
	unlock, err := lockDirectory(dir)
	if err != nil {
		return saved(op, err)
	}
	defer unlock()
	i := struct {
		Metadata  map[string]any    `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}{map[string]any{}, map[string]string{}}
	for k, v := range metadata {
		i.Metadata[k] = v
	}
	i.Metadata["total_size"] = total
	inFiles := map[string]string{"format": "pt"}
	maps.Copy(inFiles, metadata)
	prefix, like, err := newShards(dir)
	if err != nil {
		return saved(op, err)
	}
	var files []*staged
	listed := false // maybe: a failed rename may have taken place
	defer func() {
		for _, f := range files {
			f.discard()
			if f.replaced && !listed {
				_ = os.Remove(f.path)
			}
		}
	}()
	for n, part := range parts {
		base := fmt.Sprintf("%s-%05d-of-%05d.safetensors", prefix, n+1, len(parts))
		write, err := writer(part, inFiles)
		if err != nil {
			return saved(op, err)
		}
		f, err := stageLike(filepath.Join(dir, base), like, write)
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
	for _, f := range files { // all before the first gets its name: the disk may be full
		if err := f.file.Sync(); err != nil {
			return saved(op, err)
		}
	}
	for n, f := range files {
		if n == len(parts) { // the index, which must not be there before the others
			err = syncdir.Sync(dir)
			listed = err == nil
		}
		if err == nil {
			err = f.replace()
		}
		if err != nil {
			return saved(op, err)
		}
	}
	return saved(op, errors.Join(syncdir.Sync(f.dir), removeShards(dir)))
}

// saving has the directories to which SaveSharded writes: two saves at a time would give their files the same names.
var saving struct {
	sync.Mutex
	to map[string]*savedDirectory
}

type savedDirectory struct {
	sync.Mutex
	users int // goroutines that have or want the lock; saving's lock guards it
}

// lockDirectory waits until no other goroutine saves to dir.
func lockDirectory(dir string) (unlock func(), err error) {
	if !filepath.IsAbs(dir) {
		current, err := os.Getwd() // $PWD, which may lead through a symbolic link
		if err != nil {
			return nil, err
		}
		dir = current + "/" + dir
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	saving.Lock()
	d := saving.to[dir]
	if d == nil {
		if saving.to == nil {
			saving.to = map[string]*savedDirectory{}
		}
		d = &savedDirectory{}
		saving.to[dir] = d
	}
	d.users++
	saving.Unlock()
	d.Lock()
	return func() {
		d.Unlock()
		saving.Lock()
		defer saving.Unlock()
		if d.users--; d.users == 0 {
			delete(saving.to, dir)
		}
	}, nil
}

// shardName is the name of a file of SaveSharded, with the number of the save after the first.
var shardName = regexp.MustCompile(`^model(?:-([1-9]\d{0,17}))?-\d{5,}-of-\d{5,}\.safetensors$`)

// pendingShard is the name of a file that is to become one of SaveSharded.
var pendingShard = regexp.MustCompile(`^\.(model-.*\.safetensors)(\d{15,})$`)

// newShards returns a prefix for the names of new files that no file in dir or in an index has, and the path of a file
// that an index lists, whose permissions the new ones get, or "".
func newShards(dir string) (prefix, like string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", "", err
	}
	names, err := listedIn(dir, entries)
	if err != nil {
		return "", "", err
	}
	for _, base := range slices.Sorted(maps.Keys(names)) {
		if shardName.MatchString(base) && like == "" {
			like = filepath.Join(dir, base)
		}
	}
	last := 0
	for _, e := range entries {
		names[e.Name()] = true
	}
	for base := range names {
		if m := shardName.FindStringSubmatch(base); m != nil {
			n, _ := strconv.Atoi(m[1]) // 0 for the first save
			last = max(last, n, 1)
		}
	}
	if last == 0 {
		return "model", like, nil
	}
	return fmt.Sprintf("model-%d", last+1), like, nil
}

// listedIn returns the names of the files that the indexes in dir list. A file that is not an index lists none.
func listedIn(dir string, entries []os.DirEntry) (map[string]bool, error) {
	listed := map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".index.json") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var i struct {
			WeightMap map[string]any `json:"weight_map"`
		}
		if json.Unmarshal(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), &i) != nil {
			continue
		}
		for _, base := range i.WeightMap {
			if base, ok := base.(string); ok {
				listed[base] = true
			}
		}
	}
	return listed, nil
}

// removeShards removes the files of earlier saves, which no index lists, and what killed processes have left.
func removeShards(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	listed, err := listedIn(dir, entries)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !listed[e.Name()] && shardName.MatchString(e.Name()) && !e.IsDir() {
			err = errors.Join(err, os.Remove(path))
		}
		if m := pendingShard.FindStringSubmatch(e.Name()); m != nil && shardName.MatchString(m[1]) && pendingNumber(m[2]) && e.Type().IsRegular() {
			removeUnclaimed(path)
		}
	}
	return err
}
