package dist_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// stores returns a store of each kind, which the test closes.
func stores(t *testing.T) map[string]*dist.Store {
	t.Helper()
	hash, err := dist.NewHashStore()
	if err != nil {
		t.Fatal(err)
	}
	file, err := dist.NewFileStore(filepath.Join(t.TempDir(), "store"), 0)
	if err != nil {
		t.Fatal(err)
	}
	server, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dist.NewTCPStore(ctx, server.Addr(), false)
	if err != nil {
		t.Fatal(err)
	}
	prefix, err := dist.NewPrefixStore("p", client)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*dist.Store{"hash": hash, "file": file, "tcp": client, "prefix": prefix, "server": server}
	t.Cleanup(func() {
		for _, s := range []*dist.Store{hash, file, client, prefix, server} {
			if err := errors.Join(s.Close(), s.Close()); err != nil {
				t.Error(err)
			}
			if err := s.Set("a", nil); !errors.Is(err, dist.ErrClosed) {
				t.Errorf("Set after Close: %v", err)
			}
		}
	})
	return all
}

// TestStore tests the functions of each kind of store.
func TestStore(t *testing.T) {
	leak.Check(t)
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			data := []byte("a\x00b\xff")
			if err := s.Set(name+"key", data); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Get(ctx, name+"key"); err != nil || string(got) != string(data) {
				t.Errorf("Get: %q, %v", got, err)
			}
			if err := errors.Join(s.Set(name+"none", nil), s.Wait(ctx, name+"key", name+"none")); err != nil {
				t.Error(err)
			}
			if got, err := s.Get(ctx, name+"none"); err != nil || len(got) != 0 {
				t.Errorf("Get of no bytes: %q, %v", got, err)
			}
			for i, n := range []int64{5, -7} {
				if sum, err := s.Add(name+"sum", n); err != nil || sum != []int64{5, -2}[i] {
					t.Errorf("Add: %d, %v", sum, err)
				}
			}
			for _, c := range []struct{ expected, desired, want string }{{"y", "z", "y"}, {"", "x", "x"}, {"y", "z", "x"}, {"x", "z", "z"}} {
				if got, err := s.CompareSet(name+"swap", []byte(c.expected), []byte(c.desired)); err != nil || string(got) != c.want {
					t.Errorf("CompareSet(%q, %q): %q, %v", c.expected, c.desired, got, err)
				}
			}
			if all, err := s.Check(name+"key", name+"swap"); err != nil || !all {
				t.Errorf("Check: %v, %v", all, err)
			}
			if all, err := s.Check(name+"key", name+"missing"); err != nil || all {
				t.Errorf("Check of a missing key: %v, %v", all, err)
			}
			before, err := s.NumKeys()
			if err != nil || before < 4 {
				t.Errorf("NumKeys: %d, %v", before, err)
			}
			if deleted, err := s.Delete(name + "key"); err != nil || !deleted {
				t.Errorf("Delete: %v, %v", deleted, err)
			}
			if deleted, err := s.Delete(name + "key"); err != nil || deleted != (name == "file") {
				t.Errorf("a second Delete: %v, %v", deleted, err)
			}
			if err := s.Set("a\x00b", nil); !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("a key with a zero byte: %v", err)
			}
		})
	}
}

// TestStoreWaits tests waits that another goroutine ends by setting the key, and those that a context ends.
func TestStoreWaits(t *testing.T) {
	leak.Check(t)
	all := stores(t)
	for _, name := range []string{"hash", "file", "server"} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			s, other := all[name], all[name]
			if name == "server" {
				other = all["tcp"]
			}
			var set sync.WaitGroup
			set.Go(func() {
				if err := other.Set("late", []byte("1")); err != nil {
					t.Error(err)
				}
			})
			if got, err := s.Get(ctx, "late"); err != nil || string(got) != "1" {
				t.Errorf("Get: %q, %v", got, err)
			}
			set.Wait()
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if err := s.Wait(short, "late", "never"); !errors.Is(err, dist.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a deadline: %v", err)
			}
			ends, end := context.WithCancel(ctx)
			set.Go(func() {
				time.Sleep(20 * time.Millisecond)
				end()
			})
			if _, err := s.Get(ends, "never"); !errors.Is(err, context.Canceled) || errors.Is(err, dist.ErrTimeout) {
				t.Errorf("a cancelled context: %v", err)
			}
			if err := s.Wait(ends, "late"); !errors.Is(err, context.Canceled) {
				t.Errorf("a context that has ended: %v", err)
			}
			set.Wait()
		})
	}
}

// TestStoreCloseEndsWaits tests that Close ends a Get and a Wait in flight.
func TestStoreCloseEndsWaits(t *testing.T) {
	leak.Check(t)
	all := stores(t)
	for _, name := range []string{"hash", "file", "tcp", "prefix", "server"} { // the clients lose the server with its Close
		s := all[name]
		var waits sync.WaitGroup
		for call, f := range map[string]func() error{
			"Get":  func() error { return second(s.Get(ctx, "never")) },
			"Wait": func() error { return s.Wait(ctx, "never", "neither") },
		} {
			waits.Go(func() {
				if err := f(); !errors.Is(err, dist.ErrClosed) || errors.Is(err, context.Canceled) {
					t.Errorf("%s of a %s store: %v", call, name, err)
				}
			})
		}
		for dist.Calls(s) < 2 {
			time.Sleep(time.Millisecond)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		waits.Wait()
	}
}

// TestStoreAddToText tests that Add names a value that is not a number.
func TestStoreAddToText(t *testing.T) {
	leak.Check(t)
	all := stores(t)
	for _, name := range []string{"hash", "file"} {
		s := all[name]
		if err := s.Set("text", []byte("abc")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Add("text", 1); !errors.Is(err, tensor.ErrArgument) || !strings.HasPrefix(err.Error(), `linstock: Add: the value of the key "text"`) {
			t.Errorf("%s: %v", name, err)
		}
		if sum, err := s.Add("count", 2); err != nil || sum != 2 {
			t.Errorf("%s: then %d, %v", name, sum, err)
		}
	}
}

// TestStoreErrors tests addresses and paths that cannot be used.
func TestStoreErrors(t *testing.T) {
	leak.Check(t)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	server, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct{ err, kind error }{
		"nobody listens": {second(dist.NewTCPStore(short, "127.0.0.1:1", false)), dist.ErrTimeout},
		"no port":        {second(dist.NewTCPStore(ctx, "127.0.0.1", false)), tensor.ErrArgument},
		"port 0":         {second(dist.NewTCPStore(ctx, "127.0.0.1:0", false)), tensor.ErrArgument},
		"a large port":   {second(dist.NewTCPStore(ctx, "127.0.0.1:70000", false)), tensor.ErrArgument},
		"a used port":    {second(dist.NewTCPStore(ctx, server.Addr(), true)), syscall.EADDRINUSE},
		"no path":        {second(dist.NewFileStore("", 0)), tensor.ErrArgument},
		"no directory":   {second(dist.NewFileStore(filepath.Join(t.TempDir(), "none", "store"), 0)), fs.ErrNotExist},
		"a directory":    {second(dist.NewFileStore(t.TempDir(), 0)), syscall.EISDIR},
		"a long name":    {second(dist.NewFileStore(filepath.Join(t.TempDir(), strings.Repeat("x", 300)), 0)), syscall.ENAMETOOLONG},
		"Init in none": {second(dist.Init(ctx, dist.InitMethod("file:///none/meet"), dist.Rank(0), dist.WorldSize(2))),
			fs.ErrNotExist},
		"Init at a used port": {second(dist.Init(ctx, dist.InitMethod("tcp://"+taken.Addr().String()), dist.Rank(0), dist.WorldSize(2))),
			syscall.EADDRINUSE},
		"no timeout":  {second(dist.NewTCPStore(ctx, "127.0.0.1:1", false, dist.Timeout(0))), tensor.ErrArgument},
		"a zero byte": {second(dist.NewPrefixStore("\x00", server)), tensor.ErrArgument},
	} {
		if !errors.Is(c.err, c.kind) || errors.Is(c.err, dist.ErrConnection) {
			t.Errorf("%s: got %v, want %v", name, c.err, c.kind)
		}
	}
}

// TestFileOfAStore tests that the file of a store outlives its stores if the number of processes is not known, and that
// it is removed after the last process otherwise.
func TestFileOfAStore(t *testing.T) {
	leak.Check(t)
	for processes, stays := range []bool{true, false, true} {
		path := filepath.Join(t.TempDir(), "store")
		s, err := dist.NewFileStore(path, processes)
		if err == nil {
			err = errors.Join(s.Set("key", nil), s.Close())
		}
		if _, missing := os.Stat(path); err != nil || (missing == nil) != stays {
			t.Errorf("for %d processes: %v, %v", processes, err, missing)
		}
	}
}

// TestFileOfAStoreIsIncomplete tests that a file with a partial record, which libtorch would read forever, is an error.
func TestFileOfAStoreIsIncomplete(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "store")
	s, err := dist.NewFileStore(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Set("key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err := errors.Join(err, s.Close()); err != nil || len(whole) == 0 {
		t.Fatal(err)
	}
	for _, part := range []string{string(whole[:len(whole)-1]), string(whole[:len(whole)-7]), string(whole) + "\x01\x00", "text of another program"} {
		if err := os.WriteFile(path, []byte(part), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := dist.NewFileStore(path, 0); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("%q: %v, want ErrArgument", part, err)
		}
	}
	if err := os.WriteFile(path, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := dist.NewFileStore(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := again.Get(t.Context(), "key"); err != nil || string(v) != "value" {
		t.Errorf("%q, %v", v, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestSilentStore tests that the timeout and the context end the connection to a store that does not answer.
func TestSilentStore(t *testing.T) {
	leak.Check(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begun := time.Now()
	if err := second(dist.NewTCPStore(ctx, silent.Addr().String(), false, dist.Timeout(200*time.Millisecond))); !errors.Is(err, dist.ErrTimeout) {
		t.Errorf("a port that does not answer: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := second(dist.NewTCPStore(ended, ":0", true)); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	s, err := dist.NewTCPStore(ctx, ":0", true, dist.Timeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

// TestStoppedHost tests that Get, Wait and Close end when the store's host does not answer.
func TestStoppedHost(t *testing.T) {
	leak.Check(t)
	server, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	// The host is a relay that forwards nothing after it is stopped.
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var stopped atomic.Bool
	var all sync.WaitGroup
	var conns []net.Conn
	pass := func(to, from net.Conn) {
		b := make([]byte, 1<<12)
		for {
			n, err := from.Read(b)
			if err != nil {
				return
			}
			if !stopped.Load() {
				_, _ = to.Write(b[:n])
			}
		}
	}
	all.Go(func() {
		for {
			a, err := relay.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", server.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			conns = append(conns, a, b)
			all.Go(func() { pass(b, a) })
			all.Go(func() { pass(a, b) })
		}
	})
	s, err := dist.NewTCPStore(ctx, relay.Addr().String(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Set("a", []byte("1")); err != nil {
		t.Error(err)
	}
	if v, err := s.Get(ctx, "a"); err != nil || string(v) != "1" {
		t.Errorf("%q, %v", v, err)
	}
	stopped.Store(true)
	begun := time.Now()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := second(s.Get(short, "a")); !errors.Is(err, dist.ErrTimeout) {
		t.Errorf("Get: %v", err)
	}
	if err := s.Wait(short, "a"); !errors.Is(err, dist.ErrTimeout) {
		t.Errorf("Wait: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("the calls took %v", d)
	}
	_ = relay.Close()
	for _, c := range conns {
		_ = c.Close()
	}
	all.Wait()
	// The call that was left ends now, and frees the store.
	for dist.Calls(s) > 0 {
		time.Sleep(time.Millisecond)
	}
}

// TestHostilePeers tests that a store outlives peers that are none, and serves its own afterwards.
func TestHostilePeers(t *testing.T) {
	leak.Check(t)
	s, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	random := rand.New(rand.NewPCG(1, 2))
	var all sync.WaitGroup
	for i := range 300 {
		data := make([]byte, random.IntN(200))
		for k := range data {
			data[k] = byte(random.Uint32())
		}
		switch i % 3 {
		case 0: // the beginning of a handshake: VALIDATE and its magic number
			data = append([]byte{0, 0xce, 0xf7, 0x85, 0x3c}, data...)
		case 1: // then PING, whose answer nobody reads
			data = append([]byte{0, 0xce, 0xf7, 0x85, 0x3c}, bytes.Repeat([]byte{13, 1, 2, 3, 4}, 100)...)
		}
		all.Go(func() {
			c, err := net.Dial("tcp", s.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = c.Write(data)
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		})
	}
	all.Wait()
	client, err := dist.NewTCPStore(ctx, s.Addr(), false, dist.Timeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Set("key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Get(ctx, "key"); err != nil || string(v) != "value" {
		t.Errorf("%q, %v", v, err)
	}
}
