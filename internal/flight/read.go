package flight

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Run is what the ranks of a job have recorded between their start and their end.
type Run struct {
	Dir   string
	Ranks []*Rank // in ascending order
}

// most limits the sizes of groups in files that may be damaged.
const most = 1 << 20

// Rank is the file of a rank.
type Rank struct {
	Header
	Records []Record // in the order in which the calls began
}

// Read reads the files in dir, or those of the last run in a directory of runs.
func Read(dir string) (*Run, error) {
	files, err := filepath.Glob(filepath.Join(quoteGlob(dir), "rank-*.jsonl"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		// The names of runs begin with the time of their start, and ReadDir sorts.
		for _, e := range slices.Backward(entries) {
			inner := filepath.Join(dir, e.Name())
			if files, _ := filepath.Glob(filepath.Join(quoteGlob(inner), "rank-*.jsonl")); e.IsDir() && len(files) != 0 {
				return Read(inner)
			}
		}
		return nil, fmt.Errorf("%s has no files rank-*.jsonl of a flight recorder", dir)
	}
	run := &Run{Dir: dir}
	for _, path := range files {
		r, err := readRank(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		run.Ranks = append(run.Ranks, r)
	}
	slices.SortFunc(run.Ranks, func(a, b *Rank) int { return cmp.Compare(a.Rank, b.Rank) })
	return run, nil
}

// quoteGlob quotes a directory for filepath.Glob.
func quoteGlob(dir string) string {
	var b bytes.Buffer
	for _, r := range dir {
		if bytes.ContainsRune([]byte(`*?[\`), r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// readRank reads a file, which its process may be writing. Slots that cannot be read are left out.
func readRank(path string) (*Rank, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &Rank{}
	text := make([]byte, slot)
	if _, err := io.ReadFull(f, text); err != nil || json.Unmarshal(text, &r.Header) != nil || r.Version == 0 || r.Size > most {
		return nil, errors.New("not a file of a flight recorder")
	}
	if r.Version != version {
		return nil, fmt.Errorf("version %d of the format; this command reads version %d", r.Version, version)
	}
	for {
		if _, err := io.ReadFull(f, text); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		} else if err != nil {
			return nil, err
		}
		var c Record
		if json.Unmarshal(text, &c) == nil && c.Number > 0 && c.Size > 0 && c.Size <= most && c.Rank >= 0 && c.Rank < c.Size {
			r.Records = append(r.Records, c)
		}
	}
	slices.SortFunc(r.Records, func(a, b Record) int { return cmp.Compare(a.Number, b.Number) })
	return r, nil
}
