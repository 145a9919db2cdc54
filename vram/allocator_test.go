package vram

import (
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
)

func TestASettingReplacesOneOption(t *testing.T) {
	balance.Hold(t, func() {})
	for _, test := range []struct{ conf, key, value, want string }{
		{"", "a", "1", "a:1"},
		{"a:1", "a", "2", "a:2"},
		{"a:1,b:2", "a", "", "b:2"},
		{" a : 1 , b:2,", "b", "3", "a : 1,b:3"},
		{"r:[256:1,512:2,>:4],a:1", "a", "2", "r:[256:1,512:2,>:4],a:2"},
		{"ab:1,r:[a:1,b:2]", "a", "", "ab:1,r:[a:1,b:2]"},
		{"a:1,a:2", "a", "3", "a:3"},
		{"]],a:1", "a", "3", "]],a:1,a:3"},
	} {
		if got := withSetting(test.conf, test.key, test.value); got != test.want {
			t.Errorf("%q with %s:%s: %q, want %q", test.conf, test.key, test.value, got, test.want)
		}
	}
}

func TestAllocatorSettingsWithoutACUDADevice(t *testing.T) {
	balance.Hold(t, func() {})
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	if n, _ := cshim.CUDA(); n != 0 {
		t.Skip("there is a CUDA device; tests/fakecuda sets its options")
	}
	if err := SetAllocatorSettings(ExpandableSegments(true)); err == nil || !strings.Contains(err.Error(), "CUDA") {
		t.Errorf("without a device: %v", err)
	}
	if err := SetAllocatorSettings(MaxSplitSizeMB(5)); err == nil || !strings.Contains(err.Error(), "at least 20") {
		t.Errorf("MaxSplitSizeMB(5): %v", err)
	}
	if s, err := ReadAllocatorSettings(); err == nil || s != (AllocatorSettings{}) {
		t.Errorf("without a device: %+v, %v", s, err)
	}
}
