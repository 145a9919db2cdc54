package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/tensor"
)

// Main is the TestMain of tests that start processes of their own program: it runs the tests, or in a process that has a
// role plays it, and exits.
func Main(role string, run func() int, play func() error) {
	// libtorch keeps a pipe from the first TCP store on.
	if cshim.Load() == nil {
		if s, err := dist.NewTCPStore(context.Background(), "127.0.0.1:0", true); err == nil {
			_ = s.Close()
		}
	}
	if role == "" {
		os.Exit(run())
	}
	if err := play(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Play plays a role in the group that the environment describes, and returns an error if it leaves something behind. With
// strangers, which connect to the process, descriptors do not count: c10d and gloo do not close the connections of
// strangers that are still open when a group or the store is closed.
func Play(ctx context.Context, strangers bool, role func(g *dist.Group) error, opts ...dist.Option) error {
	before, err := balance.Settle(tensor.Flush, nil)
	if err != nil {
		return err
	}
	g, err := dist.Init(ctx, opts...)
	if err != nil {
		return err
	}
	if err := errors.Join(tensor.WithScope(func() error { return role(g) }), g.Close()); err != nil {
		return err
	}
	after, err := balance.Settle(tensor.Flush, &before)
	for end := time.Now().Add(time.Minute); strangers && err == nil; {
		after.Descriptors = before.Descriptors
		// Close has not waited for a store that did not answer in time, because strangers keep it busy.
		if after == before || time.Now().After(end) {
			break
		}
		after, err = balance.Settle(tensor.Flush, &before)
	}
	if err == nil && after != before {
		err = fmt.Errorf("began with %v and ended with %v", before, after)
		if after.Goroutines != before.Goroutines {
			stacks := make([]byte, 1<<20)
			err = fmt.Errorf("%w\n%s", err, stacks[:runtime.Stack(stacks, true)])
		}
	}
	return err
}
