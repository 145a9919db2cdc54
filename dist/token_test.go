package dist_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
)

// tokens starts a rank with each of the tokens, and returns their errors.
func tokens(t *testing.T, timeout time.Duration, tokens ...string) (errs []error) {
	t.Helper()
	store, err := dist.NewHashStore()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	errs = make([]error, len(tokens))
	var all sync.WaitGroup
	for r, token := range tokens {
		all.Go(func() {
			g, err := dist.Init(ctx, dist.WithStore(store), dist.Rank(r), dist.WorldSize(len(tokens)), dist.Timeout(timeout), dist.Token(token))
			errs[r] = err
			if err == nil {
				errs[r] = errors.Join(g.Barrier(ctx), g.Close())
			}
		})
	}
	all.Wait()
	return errs
}

func TestToken(t *testing.T) {
	leak.Check(t)
	for r, err := range tokens(t, time.Minute, "secret", "secret", "secret") {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for r, err := range tokens(t, time.Minute, "secret", "secret", "guess") {
		if want := []string{"ranks [2]", "ranks [2]", "ranks [0 1]"}[r]; !errors.Is(err, dist.ErrToken) || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: %v, want %s", r, err, want)
		}
	}
	for r, err := range tokens(t, time.Second, "secret", "", "secret") {
		if r == 1 {
			if err == nil || errors.Is(err, dist.ErrToken) {
				t.Errorf("the rank without a token: %v", err)
			}
		} else if !errors.Is(err, dist.ErrToken) || !errors.Is(err, dist.ErrTimeout) || !strings.Contains(err.Error(), "rank 1 ") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestTokenOfAnAbsentRank tests that a rank that has not come is late, not one without the token.
func TestTokenOfAnAbsentRank(t *testing.T) {
	leak.Check(t)
	store, err := dist.NewHashStore()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, err = dist.Init(ctx, dist.WithStore(store), dist.Rank(0), dist.WorldSize(2), dist.Timeout(100*time.Millisecond), dist.Token("secret"))
	if !errors.Is(err, dist.ErrTimeout) || errors.Is(err, dist.ErrToken) || !strings.HasSuffix(err.Error(), ": rank 1)") {
		t.Errorf("%v", err)
	}
}

// TestForgedToken tests that a process that only writes to the store does not become a rank: values of its own, or those that
// the other rank has written.
func TestForgedToken(t *testing.T) {
	leak.Check(t)
	const key = "default_pg/linstock/token/"
	for name, proof := range map[string]func(s *dist.Store) ([]byte, error){
		"of its own": func(*dist.Store) ([]byte, error) { return make([]byte, 32), nil },
		"copied":     func(s *dist.Store) ([]byte, error) { return s.Get(ctx, key+"proof/0") },
	} {
		store, err := dist.NewHashStore()
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Set(key+"number/1", make([]byte, 32)); err != nil {
			t.Fatal(err)
		}
		var forger sync.WaitGroup
		forger.Go(func() {
			p, err := proof(store)
			if err == nil {
				err = store.Set(key+"proof/1", p)
			}
			if err != nil {
				t.Error(err)
			}
		})
		g, err := dist.Init(ctx, dist.WithStore(store), dist.Rank(0), dist.WorldSize(2), dist.Timeout(time.Minute), dist.Token("secret"))
		if !errors.Is(err, dist.ErrToken) || g != nil || !strings.Contains(err.Error(), "ranks [1]") {
			t.Errorf("%s: %v, %v", name, g, err)
		}
		forger.Wait()
		_ = store.Close()
	}
}
