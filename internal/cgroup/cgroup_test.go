package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGroups reads trees of files as the kernel would show them; ROOT stands for the directory of the tree.
func TestGroups(t *testing.T) {
	const (
		v2     = "30 25 0:26 / ROOT/sys rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
		v1     = "35 31 0:32 / ROOT/sys/memory rw,relatime - cgroup cgroup rw,memory\n"
		hybrid = "38 31 0:35 / ROOT/sys/unified rw - cgroup2 cgroup2 rw\n"
		gib    = 1 << 30
	)
	for name, c := range map[string]struct {
		self, mounts string
		files        map[string]string
		want         []int64 // the limits, starting with the process's own group
	}{
		"version 2":             {"0::/a/b\n", v2, map[string]string{"sys/a/b/memory.max": "2147483648\n", "sys/a/memory.max": "max\n"}, []int64{2 * gib, 0, 0}},
		"version 2, its parent": {"0::/a/b\n", v2, map[string]string{"sys/a/b/memory.max": "max\n", "sys/a/memory.max": "1073741824\n"}, []int64{0, gib, 0}},
		"version 2, both":       {"0::/a/b\n", v2, map[string]string{"sys/a/b/memory.max": "1073741824\n", "sys/a/memory.max": "2147483648\n"}, []int64{gib, 2 * gib, 0}},
		"version 2, high":       {"0::/a\n", v2, map[string]string{"sys/a/memory.max": "2147483648\n", "sys/a/memory.high": "1073741824\n"}, []int64{gib, 0}},
		"version 2, high alone": {"0::/a\n", v2, map[string]string{"sys/a/memory.max": "max\n", "sys/a/memory.high": "1073741824\n"}, []int64{gib, 0}},
		"version 2, high max":   {"0::/a\n", v2, map[string]string{"sys/a/memory.max": "1073741824\n", "sys/a/memory.high": "max\n"}, []int64{gib, 0}},
		"a namespace":           {"0::/\n", v2, map[string]string{"sys/memory.max": "1073741824\n"}, []int64{gib}},
		"outside the namespace": {"0::/../../x\n", v2, map[string]string{"sys/memory.max": "1073741824\n"}, []int64{gib}},
		"version 1":             {"9:name=systemd:/x\n4:cpu,memory:/a\n", v1, map[string]string{"sys/memory/a/memory.limit_in_bytes": "1073741824\n", "sys/memory/memory.limit_in_bytes": "9223372036854771712\n"}, []int64{gib, 0}},
		"version 1, a bind mount in a container": {"4:memory:/docker/1f\n", "35 31 0:32 /docker/1f ROOT/sys/memory ro - cgroup cgroup rw,memory\n",
			map[string]string{"sys/memory/memory.limit_in_bytes": "1073741824\n"}, []int64{gib}},
		"version 1, below the root of a bind mount": {"4:memory:/docker/1f/x\n", "35 31 0:32 /docker/1f ROOT/sys/memory ro - cgroup cgroup rw,memory\n",
			map[string]string{"sys/memory/memory.limit_in_bytes": "2147483648\n", "sys/memory/x/memory.limit_in_bytes": "1073741824\n"}, []int64{gib, 2 * gib}},
		"version 1, a root of a similar name": {"4:memory:/docker/1ff\n", "35 31 0:32 /docker/1f ROOT/sys/memory ro - cgroup cgroup rw,memory\n",
			map[string]string{"sys/memory/memory.limit_in_bytes": "1073741824\n", "sys/memory/f/memory.limit_in_bytes": "5\n"}, []int64{gib}},
		"version 1, the path is the host's": {"4:memory:/docker/1f\n", v1, map[string]string{"sys/memory/memory.limit_in_bytes": "1073741824\n"}, []int64{gib}},
		"mounted elsewhere":                 {"4:memory:/a\n", "35 31 0:32 / ROOT/my\\040groups rw - cgroup none rw,cpu,memory\n", map[string]string{"my groups/a/memory.limit_in_bytes": "1073741824"}, []int64{gib, 0}},
		"mounted twice":                     {"4:memory:/a\n", v1 + v1, map[string]string{"sys/memory/a/memory.limit_in_bytes": "1073741824"}, []int64{gib, 0}},
		"both versions":                     {"4:memory:/a\n0::/b\n", v1 + v2, map[string]string{"sys/memory/a/memory.limit_in_bytes": "2147483648", "sys/b/memory.max": "1073741824"}, []int64{2 * gib, 0, gib, 0}},
		"hybrid, no controller in version 2": {"4:memory:/a\n0::/\n", v1 + hybrid, map[string]string{"sys/memory/a/memory.limit_in_bytes": "1073741824", "sys/unified/cgroup.procs": ""},
			[]int64{gib, 0, 0}},
		"not mounted": {"4:memory:/a\n0::/b\n", "", map[string]string{"sys/a/memory.max": "5"}, nil},
		"rubbish":     {"0\n::\nx:y\n0::/a\n", "x\n1 2 3 - cgroup2\n" + v2, map[string]string{"sys/a/memory.max": "-1\n", "sys/memory.max": "a lot\n"}, []int64{0, 0}},
		"nothing":     {"", "", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "ROOT", root)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for name, text := range c.files {
				write(name, text)
			}
			write("proc/cgroup", c.self)
			write("proc/mountinfo", c.mounts)
			var got []int64
			for _, g := range Of(filepath.Join(root, "proc")) {
				got = append(got, g.Limit())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("limits of %v, want %v; groups %v", got, c.want, Of(filepath.Join(root, "proc")))
			}
		})
	}
	if got := Of(filepath.Join(t.TempDir(), "none")); len(got) != 0 {
		t.Errorf("%v where the system has no cgroups", got)
	}
}
