package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/tensor"
)

// Ranks runs f as each of n ranks, goroutines of this process that meet in a HashStore, and closes their groups.
func Ranks(ctx context.Context, n int, f func(g *dist.Group) error, opts ...dist.Option) error {
	store, err := dist.NewHashStore()
	if err != nil {
		return err
	}
	defer store.Close()
	var all sync.WaitGroup
	errs := make([]error, n)
	for r := range n {
		all.Go(func() {
			g, err := dist.Init(ctx, append([]dist.Option{dist.WithStore(store), dist.Rank(r), dist.WorldSize(n), dist.Timeout(time.Minute)}, opts...)...)
			if err == nil {
				err = errors.Join(tensor.WithScope(func() error { return f(g) }), g.Close())
			}
			if err != nil {
				errs[r] = fmt.Errorf("rank %d: %w", r, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
