package cgroup_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/cgroup"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// follow makes the limit follow a cgroup made of a directory of files, like those of the kernel.
func follow(t *testing.T, version int, limit, usage int64, stat string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	files(t, dir, version, limit, usage, stat)
	if err := cshim.MemoryFollowCGroups([]cgroup.Group{{Version: version, Dir: dir}}, 4<<30, 1, 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

func files(t *testing.T, dir string, version int, limit, usage int64, stat string) {
	t.Helper()
	names := []string{"memory.limit_in_bytes", "memory.usage_in_bytes"}
	if version == 2 {
		names = []string{"memory.max", "memory.current"}
	}
	for name, text := range map[string]string{names[0]: fmt.Sprintln(limit), names[1]: fmt.Sprintln(usage), "memory.stat": stat} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func limit(t *testing.T) int64 {
	t.Helper()
	m, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return m.Limit
}

// give allocates and frees the given number of bytes.
func give(t *testing.T, bytes int64) {
	t.Helper()
	for ; bytes > 0; bytes -= 4 * mib {
		x := tensor.Ones([]int{mib})
		if err := x.Err(); err != nil {
			t.Fatal(err)
		}
		x.Release()
	}
}

// fixed restores the previous limit.
func fixed(t *testing.T) {
	t.Helper()
	before := limit(t)
	t.Cleanup(func() { _ = vram.SetLimit(tensor.CPU, vram.Bytes(before)) })
}

func near(t *testing.T, what string, got, want int64) {
	t.Helper()
	if got < want-8*mib || got > want+8*mib {
		t.Errorf("%s: a limit of %.1f MiB, want %.1f", what, float64(got)/mib, float64(want)/mib)
	}
}

// TestLimitFollowsUsage tests that the limit is the bytes of tensors plus the free memory of the cgroup, less the
// reserve.
func TestLimitFollowsUsage(t *testing.T) {
	leak.Check(t)
	fixed(t)
	if err := vram.EmptyCache(tensor.CPU); err != nil {
		t.Fatal(err)
	}
	stat := func(version int, inactive, active, mapped int64) string {
		if version == 1 {
			// The group's own figures come first, and do not include those of the groups below it.
			return fmt.Sprintf("inactive_file 7\nactive_file 7\nmapped_file 7\ntotal_mapped_file %d\ntotal_inactive_file %d\ntotal_active_file %d\n", mapped, inactive, active)
		}
		return fmt.Sprintf("anon 5\nfile_mapped %d\ninactive_file %d\nactive_file %d\n", mapped, inactive, active)
	}
	for _, version := range []int{1, 2} {
		dir := follow(t, version, 1024*mib, 400*mib, stat(version, 0, 0, 0))
		near(t, "no page cache", limit(t), (1024-64-400)*mib)
		// Page cache can be reclaimed, unless it is mapped.
		files(t, dir, version, 1024*mib, 400*mib, stat(version, 100*mib, 60*mib, 30*mib))
		give(t, 1024*mib) // enough to trigger another reading
		near(t, "page cache", limit(t), (1024-64-400+130)*mib)
		// Mapped memory may exceed the page cache, because it includes shared memory.
		files(t, dir, version, 1024*mib, 400*mib, stat(version, 10*mib, 0, 30*mib))
		give(t, 1024*mib)
		near(t, "shared memory", limit(t), (1024-64-400)*mib)
		// The limit itself may change.
		files(t, dir, version, 800*mib, 400*mib, "")
		give(t, 1024*mib)
		near(t, "a lower limit", limit(t), (800-57-400)*mib)
		if err := vram.EmptyCache(tensor.CPU); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLimitIsAShare tests that the limit is at most a share of the cgroup's, also after that has changed.
func TestLimitIsAShare(t *testing.T) {
	leak.Check(t)
	fixed(t)
	dir := t.TempDir()
	groups := []cgroup.Group{{Version: 2, Dir: dir}}
	files(t, dir, 2, 1024*mib, 0, "")
	if err := cshim.MemoryFollowCGroups(groups, 1536*mib, 0.5, 0); err != nil {
		t.Fatal(err)
	}
	near(t, "at the start", limit(t), 512*mib)
	for _, now := range []struct {
		what        string
		group, want int64
	}{{"a higher limit", 2048 * mib, 1024 * mib}, {"a lower limit", 512 * mib, 256 * mib}, {"much higher", 8192 * mib, 1536 * mib}} {
		files(t, dir, 2, now.group, 0, "")
		give(t, 1024*mib) // enough to trigger another reading
		near(t, now.what, limit(t), now.want)
	}
	for _, share := range []float64{0, -1, 1.5, math.NaN()} {
		if err := cshim.MemoryFollowCGroups(groups, 4<<30, share, 0); err == nil {
			t.Errorf("a share of %v was taken", share)
		}
	}
}

// TestLimitOfUnreadableGroup tests that a group whose files cannot be read for a while, or no more, bounds the limit as
// before, and that only one that says so has no limit.
func TestLimitOfUnreadableGroup(t *testing.T) {
	leak.Check(t)
	fixed(t)
	for _, version := range []int{1, 2} {
		if err := vram.EmptyCache(tensor.CPU); err != nil {
			t.Fatal(err)
		}
		dir := follow(t, version, 1024*mib, 400*mib, "")
		outer := t.TempDir()
		files(t, outer, version, 2048*mib, 1000*mib, "")
		groups := []cgroup.Group{{Version: version, Dir: dir}, {Version: version, Dir: outer}}
		if err := cshim.MemoryFollowCGroups(groups, 4<<30, 0.5, 0); err != nil {
			t.Fatal(err)
		}
		is := func(what string, want int64) {
			t.Helper()
			give(t, 1024*mib) // enough to trigger another reading
			near(t, fmt.Sprintf("version %d: %s", version, what), limit(t), want)
		}
		usage := map[int]string{1: "memory.usage_in_bytes", 2: "memory.current"}[version]
		if err := os.Remove(filepath.Join(dir, usage)); err != nil {
			t.Fatal(err)
		}
		is("no usage", 512*mib)
		files(t, dir, version, 1024*mib, 800*mib, "")
		is("readable", (1024-64-800)*mib)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		is("no directory", (1024-64-800)*mib)
		files(t, outer, version, 2048*mib, 1900*mib, "")
		is("a group above that is fuller", (2048-96-1900)*mib)
		files(t, outer, version, 2048*mib, 1000*mib, "")
		is("a group above with room", (1024-64-800)*mib)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		files(t, dir, version, math.MaxInt64, 800*mib, "")
		if version == 2 { // a directory is a file that cannot be read
			if err := os.Mkdir(filepath.Join(dir, "memory.high"), 0o700); err != nil {
				t.Fatal(err)
			}
			is("memory.high", (1024-64-800)*mib)
			if err := os.Remove(filepath.Join(dir, "memory.high")); err != nil {
				t.Fatal(err)
			}
		}
		is("no limit", (2048-96-1000)*mib)
	}
}

// TestLimitFollowsAtTheLimit tests that an allocation that does not fit reads the cgroup again before it fails, and
// before it succeeds where there was room before.
func TestLimitFollowsAtTheLimit(t *testing.T) {
	leak.Check(t)
	fixed(t)
	dir := follow(t, 2, 600*mib, 580*mib, "")
	if err := tensor.Ones([]int{2 * mib}).Err(); !errors.Is(err, tensor.ErrOutOfMemory) {
		t.Errorf("8 MiB where there is no room: %v", err)
	}
	files(t, dir, 2, 600*mib, 400*mib, "")
	if err := tensor.Ones([]int{2 * mib}).Err(); err != nil {
		t.Errorf("8 MiB of 200: %v", err)
	}
	files(t, dir, 2, 600*mib, 590*mib, "")
	if err := tensor.Ones([]int{20 * mib}).Err(); !errors.Is(err, tensor.ErrOutOfMemory) {
		t.Errorf("80 MiB where there were 200: %v", err)
	}
}

// TestLimitOfSeveralGroups tests that the lowest of several limits counts, and that groups without a limit or whose files
// were never readable do not.
func TestLimitOfSeveralGroups(t *testing.T) {
	leak.Check(t)
	fixed(t)
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	files(t, dirs[0], 2, 2048*mib, 100*mib, "")
	files(t, dirs[1], 1, 1024*mib, 500*mib, "")
	files(t, dirs[2], 1, 9223372036854771712, 500*mib, "")
	groups := []cgroup.Group{{Version: 2, Dir: dirs[0]}, {Version: 1, Dir: dirs[1]}, {Version: 1, Dir: dirs[2]}, {Version: 2, Dir: filepath.Join(dirs[0], "none")}}
	if err := cshim.MemoryFollowCGroups(groups, 4<<30, 1, 0); err != nil {
		t.Fatal(err)
	}
	near(t, "three groups", limit(t), (1024-64-500)*mib)
	if err := os.WriteFile(filepath.Join(dirs[0], "memory.high"), []byte("320000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cshim.MemoryFollowCGroups(groups, 4<<30, 1, 0); err != nil {
		t.Fatal(err)
	}
	near(t, "memory.high", limit(t), 320000000*7/8-100*mib)
	if err := cshim.MemoryFollowCGroups(groups[2:], 3<<30, 1, 0); err != nil {
		t.Fatal(err)
	}
	near(t, "no limit", limit(t), 3<<30)
	if err := cshim.MemoryFollowCGroups([]cgroup.Group{{Version: 3}}, 3<<30, 1, 0); err == nil {
		t.Error("cgroups of version 3 were taken")
	}
	if err := cshim.MemoryFollowCGroups(groups, 0, 1, 0); err == nil {
		t.Error("0 bytes at most were taken")
	}
}
