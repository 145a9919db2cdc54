package gpt

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Text is a text as tokens, one a character.
type Text struct {
	Tokens []uint8 // indices of Vocab
	Vocab  Vocab
}

// Vocab is the characters that there are, in ASCII's order.
type Vocab string

// ReadGoSource reads the Go toolchain's own source: the .go files below root in the order of their paths, without
// tests (_test.go) and testdata directories, one after the other. Characters beyond ASCII are left out.
func ReadGoSource(root string) (*Text, error) {
	type source struct {
		path     string
		from, to int
	}
	var sources []source
	size := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case !d.Type().IsRegular() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		sources = append(sources, source{path, size, size + int(info.Size())})
		size += int(info.Size())
		return nil
	})
	if err != nil {
		return nil, err
	}
	// All goes to its place in one buffer, which becomes the tokens: the text is in memory once.
	all := make([]byte, size)
	var readers errgroup.Group
	readers.SetLimit(2 * runtime.NumCPU())
	for _, s := range sources {
		readers.Go(func() error {
			f, err := os.Open(s.path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.ReadFull(f, all[s.from:s.to])
			return err
		})
	}
	if err := readers.Wait(); err != nil {
		return nil, err
	}
	return NewText(all)
}

// NewText makes a text of the ASCII characters of chars, whose memory becomes the tokens'.
func NewText(chars []byte) (*Text, error) {
	var there [128]bool
	n := 0
	for _, c := range chars {
		if c < 128 {
			there[c] = true
			chars[n] = c
			n++
		}
	}
	var vocab []byte
	var token [128]uint8
	for c, yes := range there {
		if yes {
			token[c] = uint8(len(vocab))
			vocab = append(vocab, byte(c))
		}
	}
	if n == 0 {
		return nil, errors.New("the text has no ASCII characters")
	}
	tokens := chars[:n]
	for i, c := range tokens {
		tokens[i] = token[c]
	}
	return &Text{Tokens: tokens, Vocab: Vocab(vocab)}, nil
}

// Split cuts the text in two by position: what is learned, and a twentieth at the end that is held out.
func (t *Text) Split() (train, held []uint8) {
	at := len(t.Tokens) / 20 * 19
	return t.Tokens[:at], t.Tokens[at:]
}

// Entropy is that of the single characters, in nats: the loss of a model that knows their frequencies alone.
func (t *Text) Entropy() float64 {
	var count [256]float64
	for _, c := range t.Tokens {
		count[c]++
	}
	h, n := 0.0, float64(len(t.Tokens))
	for _, c := range count {
		if c > 0 {
			h -= c / n * math.Log(c/n)
		}
	}
	return h
}

// Encode gives the tokens of s; a character that the vocabulary lacks is an error.
func (v Vocab) Encode(s string) ([]int64, error) {
	ids := make([]int64, 0, len(s))
	for _, r := range s {
		i := strings.IndexRune(string(v), r)
		if i < 0 {
			return nil, fmt.Errorf("the model does not know the character %q", r)
		}
		ids = append(ids, int64(i))
	}
	return ids, nil
}

// Decode is the text of tokens.
func (v Vocab) Decode(ids ...int64) string {
	b := make([]byte, len(ids))
	for i, id := range ids {
		b[i] = v[id]
	}
	return string(b)
}
