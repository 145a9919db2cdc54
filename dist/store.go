package dist

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// DefaultTimeout is the timeout of groups and of stores that none is given to. PyTorch: torch.distributed.default_pg_timeout.
const DefaultTimeout = 30 * time.Minute

// A Store maps keys to bytes for all processes of a job. Several goroutines may use one, although a [NewTCPStore] serves
// one call at a time. The caller closes it. PyTorch: torch.distributed.Store.
type Store struct {
	mu     sync.Mutex
	native cshim.Store
	calls  int           // that use native
	idle   chan struct{} // closed when Close has freed native
	closed atomic.Bool
	ending context.Context // ended by Close, with the waits
	end    context.CancelFunc
	addr   string // of the server, if there is one
}

// NewHashStore makes a store in the memory of this process, for ranks that are goroutines. PyTorch:
// torch.distributed.HashStore.
func NewHashStore() (*Store, error) {
	return made("NewHashStore", "", func() (cshim.Store, error) { return cshim.HashStoreNew() })
}

// NewFileStore makes a store in a file that processes share; processes is the number of those that use it, after the last
// of which the file is removed, or 0 if it is not known: the file then stays. The directory of the file must exist.
// PyTorch: torch.distributed.FileStore.
func NewFileStore(path string, processes int) (*Store, error) {
	return fileStore(context.Background(), "NewFileStore", path, processes)
}

func fileStore(ctx context.Context, op, path string, processes int) (*Store, error) {
	if err := checkText(op, "the path", path); err != nil {
		return nil, err
	}
	if path == "" || processes < 0 {
		return nil, refuse.Error(op, tensor.ErrArgument, "path %q for %d processes", path, processes)
	}
	// libtorch retries for minutes if the directory does not exist, and its errors have no kinds.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, refuse.Error(op, err, "%v", err)
	}
	err = checkRecords(ctx, f)
	if closing := f.Close(); err == nil {
		err = closing
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, endedBy(op, ctx.Err())
	case errors.Is(err, errRecords):
		return nil, refuse.Error(op, tensor.ErrArgument, "%s: %v: it is not a store, or a process ended while it wrote to it; remove it if no process uses it", path, err)
	case err != nil:
		return nil, refuse.Error(op, err, "%v", err)
	}
	if processes == 0 {
		processes = -1 // libtorch would remove the file when no store has it open
	}
	return madeWithin(ctx, op, func() (cshim.Store, error) { return cshim.FileStoreNew(path, processes) })
}

var errRecords = errors.New("a record is incomplete")

// checkRecords returns an error unless the file of a store consists of whole records: libtorch would read forever at a
// partial one. A process that is writing a record has a second to finish.
func checkRecords(ctx context.Context, f *os.File) error {
	for end := time.Now().Add(time.Second); ; {
		err := records(f)
		if !errors.Is(err, errRecords) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// records reads the lengths of the keys and values in a store's file: each has 32 bits, and precedes the bytes.
func records(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	key := true
	for at := int64(0); at < info.Size(); key = !key {
		var head [4]byte
		n, err := f.ReadAt(head[:], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		length := int64(binary.NativeEndian.Uint32(head[:]))
		if n < len(head) || length > info.Size()-at-int64(n) || key && length == 0 {
			return fmt.Errorf("%w at byte %d of %d", errRecords, at, info.Size())
		}
		at += int64(n) + length
	}
	if !key {
		return fmt.Errorf("%w: the last key has no value", errRecords)
	}
	return nil
}

// NewPrefixStore returns a store whose keys are those of base with prefix and "/" before them. base may be closed first.
// PyTorch: torch.distributed.PrefixStore.
func NewPrefixStore(prefix string, base *Store) (s *Store, err error) {
	const op = "NewPrefixStore"
	if err := checkText(op, "the prefix", prefix); err != nil {
		return nil, err
	}
	err = base.use(op, func(n cshim.Store) error {
		s, err = made(op, base.addr, func() (cshim.Store, error) { return n.Prefix(prefix) })
		return err
	})
	return s, err
}

// NewTCPStore connects to the store that another process hosts at addr, "host:port", or with server hosts it; port 0 is
// then one that is free, see [Store.Addr]. The error for a port that is in use is syscall.EADDRINUSE. It waits for the
// server until ctx ends or the timeout is over. Option: Timeout. PyTorch: torch.distributed.TCPStore.
func NewTCPStore(ctx context.Context, addr string, server bool, opts ...Option) (*Store, error) {
	const op = "NewTCPStore"
	o, err := optionsOf(op, opts)
	if err != nil {
		return nil, err
	}
	return tcpStore(ctx, op, addr, cshim.TCPStore{Server: server}, o.timeout)
}

func tcpStore(ctx context.Context, op, addr string, t cshim.TCPStore, timeout time.Duration) (*Store, error) {
	if err := refuse.Ended(op, ctx, ErrTimeout); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, refuse.Error(op, tensor.ErrArgument, "address %q: %v", addr, err)
	}
	if err := checkText(op, "the host", host); err != nil {
		return nil, err
	}
	if t.Port, err = strconv.Atoi(port); err != nil || t.Port < 0 || t.Port > 65535 || t.Port == 0 && !t.Server {
		return nil, refuse.Error(op, tensor.ErrArgument, "address %q: port %q is not a number in [1, 65535]", addr, port)
	}
	host = cmp.Or(host, "localhost") // also the server's own client connects to it
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !t.Server {
		if err := reach(ctx, addr); err != nil {
			return nil, refuse.Error(op, orTimeout(err), "no store at %s: %v", addr, err)
		}
	}
	t.Host, t.Milliseconds = host, left(ctx, timeout)
	var bound int
	s, err := madeWithin(ctx, op, func() (n cshim.Store, err error) {
		n, bound, err = t.New()
		return n, err
	})
	if errors.Is(err, ErrTimeout) {
		return nil, refuse.Error(op, err, "no store at %s: %v", addr, context.DeadlineExceeded)
	}
	if errno := notListening(err); errno != 0 {
		return nil, refuse.Error(op, errno, "the store cannot listen on port %s: %v; choose another port, by MASTER_PORT or in the address", port, errno)
	}
	if err != nil {
		return nil, err
	}
	s.addr = net.JoinHostPort(host, strconv.Itoa(bound))
	return s, nil
}

// unbound is in the error of c10d's TCP store for a port that it cannot listen on.
var unbound = regexp.MustCompile(`failed to listen .*code: -(\d+)`)

// notListening returns why the server of a store cannot listen, and 0 for other errors.
func notListening(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var n int
	if m := unbound.FindStringSubmatch(err.Error()); m != nil {
		n, _ = strconv.Atoi(m[1])
	}
	return syscall.Errno(n)
}

// tardy is how long a native call may take to end after its context or deadline before it is abandoned.
const tardy = 200 * time.Millisecond

// madeWithin makes a store by f, which may not return in time: libtorch waits forever for a listener on the store's
// port that is not a store. What f makes later is freed.
func madeWithin(ctx context.Context, op string, f func() (cshim.Store, error)) (*Store, error) {
	in := true
	s, err := made(op, "", func() (n cshim.Store, err error) {
		n, err, in = within(ctx, f, cshim.Store.Free)
		return n, err
	})
	if !in {
		return nil, endedBy(op, ctx.Err())
	}
	return s, err
}

// within calls f on a goroutine. If ctx ends and f does not return soon, in is false, and late gets what f returns without an
// error.
func within[T any](ctx context.Context, f func() (T, error), late func(T)) (v T, err error, in bool) {
	type result struct {
		v   T
		err error
	}
	all := make(chan result, 1)
	go func() {
		v, err := f()
		all <- result{v, err}
	}()
	select {
	case r := <-all:
		return r.v, r.err, true
	case <-ctx.Done():
	}
	select {
	case r := <-all:
		return r.v, r.err, true
	case <-time.After(tardy):
	}
	go func() {
		if r := <-all; r.err == nil {
			late(r.v)
		}
	}()
	return v, ctx.Err(), false
}

// orTimeout returns ErrTimeout for an expired deadline, and err otherwise.
func orTimeout(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.Join(ErrTimeout, err)
	}
	return err
}

// endedBy returns the error of a call whose context has ended.
func endedBy(op string, err error) error { return refuse.Error(op, orTimeout(err), "%v", err) }

// reach waits until something listens at addr: libtorch's own connect does not end with a context.
func reach(ctx context.Context, addr string) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}

// left returns the milliseconds until ctx's deadline, at most timeout.
func left(ctx context.Context, timeout time.Duration) int64 {
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	return max(1, timeout.Milliseconds())
}

func made(op, addr string, f func() (cshim.Store, error)) (*Store, error) {
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	n, err := f()
	if err != nil {
		return nil, failed(op, err)
	}
	s := &Store{native: n, addr: addr, idle: make(chan struct{})}
	s.ending, s.end = context.WithCancel(context.Background())
	return s, nil
}

// checkText refuses what C cannot pass on.
func checkText(op, what, s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return refuse.Error(op, tensor.ErrArgument, "%s contains a zero byte", what)
	}
	return nil
}

// use calls f with the native store, which Close does not free meanwhile.
func (s *Store) use(op string, f func(n cshim.Store) error) error {
	n, err := s.acquire(op)
	if err != nil {
		return err
	}
	defer s.release()
	return f(n)
}

// acquire returns the native store, which is not freed before release.
func (s *Store) acquire(op string) (cshim.Store, error) {
	if s == nil {
		return 0, refuse.Nil(op, "a store")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() || s.native == 0 {
		return 0, refuse.Error(op, ErrClosed, "the store was closed")
	}
	s.calls++
	return s.native, nil
}

func (s *Store) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.free()
}

// free frees the native store if it was closed and no call uses it. The caller holds the lock.
func (s *Store) free() {
	if s.closed.Load() && s.calls == 0 && s.native != 0 { // 0: libtorch may not be loaded
		s.native.Free()
		s.native = 0
		close(s.idle)
	}
}

func (s *Store) key(op, key string, f func(n cshim.Store) error) error {
	if err := checkText(op, "the key", key); err != nil {
		return err
	}
	return s.use(op, func(n cshim.Store) error { return failed(op, f(n)) })
}

// waiting calls f with the milliseconds and the flag that end its wait with ctx.
func waiting(ctx context.Context, op string, timeout time.Duration, f func(milliseconds int64, cancel *int32) error) error {
	if err := refuse.Ended(op, ctx, ErrTimeout); err != nil {
		return err
	}
	cancel := new(int32)
	defer context.AfterFunc(ctx, func() { atomic.StoreInt32(cancel, 1) })()
	err := f(left(ctx, timeout), cancel)
	if _, kind := network(err); kind == ErrTimeout {
		end := ctx.Err()
		// The wait may end a moment before the context does.
		if at, ok := ctx.Deadline(); ok && end == nil && time.Until(at) < time.Millisecond {
			end = context.DeadlineExceeded
		}
		if end != nil {
			return endedBy(op, end)
		}
	}
	return failed(op, err)
}

// Addr returns the address "host:port" of the server of a TCP store, and "" for other stores.
func (s *Store) Addr() string {
	if s == nil {
		return ""
	}
	return s.addr
}

// Close frees the store when the calls that use it have returned; Get and Wait end with ErrClosed. It does not wait for a
// call that the store's host does not answer, for example because it is stopped; the store is then freed when the call
// returns. For the process that hosts a TCP store, the store ends for all processes once the groups that use it are closed,
// too. A second Close does nothing.
func (s *Store) Close() error {
	if s == nil || s.closed.Swap(true) {
		return nil
	}
	if s.end != nil {
		s.end()
	}
	s.mu.Lock()
	s.free()
	wait := s.native != 0
	s.mu.Unlock()
	if wait {
		select {
		case <-s.idle:
		case <-time.After(grace):
		}
	}
	return nil
}

// Set sets a key to value. PyTorch: Store.set.
func (s *Store) Set(key string, value []byte) error {
	return s.key("Set", key, func(n cshim.Store) error { return n.Set(key, value) })
}

// await calls f as waiting does. It ends with ctx, the timeout and Close also if the store's host does not answer; late then
// gets what f returns without an error.
func await[T any](ctx context.Context, op string, s *Store, timeout time.Duration, f func(n cshim.Store, milliseconds int64, cancel *int32) (T, error), late func(T)) (v T, err error) {
	if err := refuse.Ended(op, ctx, ErrTimeout); err != nil {
		return v, err
	}
	n, err := s.acquire(op)
	if err != nil {
		return v, err
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	begun := false
	var ended error // of the context of a call that has not returned
	err = waiting(both, op, timeout, func(ms int64, cancel *int32) (err error) {
		begun = true
		limit, end := context.WithTimeout(both, time.Duration(ms)*time.Millisecond)
		defer end()
		var in bool
		v, err, in = within(limit, func() (T, error) {
			defer s.release()
			return f(n, ms, cancel)
		}, late)
		if !in {
			ended = limit.Err()
		}
		return err
	})
	if !begun {
		s.release()
	}
	if ended != nil {
		err = endedBy(op, ended)
	}
	if err != nil && ctx.Err() == nil && s.closed.Load() {
		err = refuse.Error(op, ErrClosed, "the store was closed")
	}
	return v, err
}

// awaitError is await for an f that returns an error alone.
func awaitError(ctx context.Context, op string, s *Store, timeout time.Duration, f func(n cshim.Store, milliseconds int64, cancel *int32) error) error {
	_, err := await(ctx, op, s, timeout, func(n cshim.Store, ms int64, cancel *int32) (struct{}, error) {
		return struct{}{}, f(n, ms, cancel)
	}, func(struct{}) {})
	return err
}

// setWithin is Set, which ends with ctx and the timeout also if a call before it waits for the store's host.
func (s *Store) setWithin(ctx context.Context, op string, timeout time.Duration, key string, value []byte) error {
	return awaitError(ctx, op, s, timeout, func(n cshim.Store, _ int64, _ *int32) error { return n.Set(key, value) })
}

// Get waits until the key is set, ctx ends or DefaultTimeout is over, and returns its value. PyTorch: Store.get.
func (s *Store) Get(ctx context.Context, key string) (value []byte, err error) {
	const op = "Get"
	if err := checkText(op, "the key", key); err != nil {
		return nil, err
	}
	return await(ctx, op, s, DefaultTimeout, func(n cshim.Store, ms int64, cancel *int32) ([]byte, error) { return n.Get(key, ms, cancel) }, func([]byte) {})
}

// Wait waits until all keys are set, ctx ends or DefaultTimeout is over. PyTorch: Store.wait.
func (s *Store) Wait(ctx context.Context, keys ...string) error {
	const op = "Wait"
	for _, k := range keys {
		if err := checkText(op, "the key", k); err != nil {
			return err
		}
	}
	if len(keys) == 0 {
		return s.use(op, func(cshim.Store) error { return nil })
	}
	end := time.Now().Add(DefaultTimeout) // of all keys
	for _, k := range keys {
		if err := awaitError(ctx, op, s, time.Until(end), func(n cshim.Store, ms int64, cancel *int32) error { return n.Wait(k, ms, cancel) }); err != nil {
			return err
		}
	}
	return nil
}

// Check reports whether all keys are set. PyTorch: Store.check.
func (s *Store) Check(keys ...string) (all bool, err error) {
	all = true
	for _, k := range keys {
		err = s.key("Check", k, func(n cshim.Store) error {
			there, err := n.Check(k)
			all = all && there
			return err
		})
		if err != nil || !all {
			return false, err
		}
	}
	return all, nil
}

// Add adds n to the number in a key, 0 if it is not set, and returns the sum. A value that is not a number is an error,
// after which a TCP store has lost its connection. PyTorch: Store.add.
func (s *Store) Add(key string, n int64) (sum int64, err error) {
	const op = "Add"
	err = s.key(op, key, func(native cshim.Store) (err error) {
		sum, err = native.Add(key, n)
		return err
	})
	// The message is the name of the function that throws.
	if e := (*tensor.Error)(nil); errors.As(err, &e) && strings.HasPrefix(e.Message, "stoll") {
		err = refuse.Error(op, tensor.ErrArgument, "the value of the key %.80q is not a number", key)
	}
	return sum, err
}

// CompareSet sets a key to desired if its value is expected, or if it is not set and expected is empty. It returns the
// key's value then, or expected if it is not set. PyTorch: Store.compare_set.
func (s *Store) CompareSet(key string, expected, desired []byte) (value []byte, err error) {
	err = s.key("CompareSet", key, func(n cshim.Store) (err error) {
		value, err = n.CompareSet(key, expected, desired)
		return err
	})
	return value, err
}

// Delete deletes a key and reports whether it was set; a file store always reports true. PyTorch: Store.delete_key.
func (s *Store) Delete(key string) (deleted bool, err error) {
	err = s.key("Delete", key, func(n cshim.Store) (err error) {
		deleted, err = n.Delete(key)
		return err
	})
	return deleted, err
}

// NumKeys returns the number of keys; that of a prefix store includes the keys of its base. PyTorch: Store.num_keys.
func (s *Store) NumKeys() (keys int, err error) {
	const op = "NumKeys"
	err = s.use(op, func(n cshim.Store) error {
		k, err := n.NumKeys()
		keys = int(k)
		return failed(op, err)
	})
	return keys, err
}
