package gpt

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Text is a text as tokens, one per character.
type Text struct {
	Tokens []uint8 // indices of Vocab
	Vocab  Vocab
}

// Vocab is the characters of the text, in ASCII order.
type Vocab string

// GoRoot returns the directory of the Go toolchain: $GOROOT, or the one that the go command prints.
func GoRoot() (string, error) {
	if root := os.Getenv("GOROOT"); root != "" {
		return root, nil
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT, whose src has the text: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// ReadGoSource reads the source of the Go toolchain: the .go files below root in the order of their paths, without
// tests (_test.go) and testdata directories, concatenated. It omits characters that are not ASCII.
func ReadGoSource(root string) (*Text, error) {
	type source struct {
		path     string
		from, to int
	}
	var sources []source
	size := 0
	root, err := filepath.EvalSymlinks(root) // WalkDir does not follow it, and Debian's $GOROOT/src is a link
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
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
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s has no .go files apart from tests", root)
	}
	// Read all files into one buffer, which becomes the tokens, so that the text is in memory once.
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
	text, err := NewText(all)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", root, err)
	}
	return text, nil
}

// NewText makes a text of the ASCII characters of chars. It reuses the memory of chars for the tokens.
func NewText(chars []byte) (*Text, error) {
	var there [128]bool
	for _, c := range chars {
		if c < 128 {
			there[c] = true
		}
	}
	var vocab []byte
	for c, yes := range there {
		if yes {
			vocab = append(vocab, byte(c))
		}
	}
	if len(vocab) == 0 {
		return nil, errors.New("the text has no ASCII characters")
	}
	return &Text{Tokens: Vocab(vocab).Tokens(chars), Vocab: Vocab(vocab)}, nil
}

// Tokens returns the tokens of chars without those that are not in the vocabulary. It reuses the memory of chars.
func (v Vocab) Tokens(chars []byte) []uint8 {
	const none = 255 // no token: a vocabulary is of ASCII characters
	var token [256]uint8
	for c := range token {
		token[c] = none
	}
	for i, c := range []byte(v) {
		token[c] = uint8(i)
	}
	n := 0
	for _, c := range chars {
		if t := token[c]; t != none {
			chars[n] = t
			n++
		}
	}
	return chars[:n]
}

// ID identifies the text by its length and a hash. A training that continues compares it.
func (t *Text) ID() string {
	h := sha256.New()
	h.Write([]byte(t.Vocab))
	h.Write(t.Tokens)
	return fmt.Sprintf("%d characters, SHA-256 %x", len(t.Tokens), h.Sum(nil)[:8])
}

// Split splits the text by position into the training text and the last twentieth, which is held out.
func (t *Text) Split() (train, held []uint8) {
	at := len(t.Tokens) / 20 * 19
	return t.Tokens[:at], t.Tokens[at:]
}

// Entropy returns the entropy of the single characters, in nats: the loss of a model that knows only their frequencies.
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

// Encode returns the tokens of s. A character that is not in the vocabulary is an error.
func (v Vocab) Encode(s string) ([]int64, error) {
	ids := make([]int64, 0, len(s))
	for _, r := range s {
		i := strings.IndexRune(string(v), r)
		if i < 0 {
			return nil, fmt.Errorf("the character %q is not in the vocabulary", r)
		}
		ids = append(ids, int64(i))
	}
	return ids, nil
}

// Prompt is Encode of a text that a model continues. An empty one is an error.
func (v Vocab) Prompt(s string) ([]int64, error) {
	if s == "" {
		return nil, errors.New("the prompt is empty")
	}
	return v.Encode(s)
}

// Decode returns the text of tokens.
func (v Vocab) Decode(ids ...int64) string {
	b := make([]byte, len(ids))
	for i, id := range ids {
		b[i] = v[id]
	}
	return string(b)
}
