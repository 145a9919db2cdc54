package vram

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/internal/elsewhere"
)

func TestHostMemory(t *testing.T) {
	balance.Hold(t, func() {})
	machine := physicalMemory("/proc/meminfo")
	if machine < 64<<20 {
		t.Fatalf("the machine has %d bytes", machine)
	}
	// A container may show less in /proc/meminfo than the kernel has.
	if n := physicalMemory("/nowhere/meminfo"); n < machine || n > 1<<50 {
		t.Errorf("the machine has %d bytes without /proc, and with it %d", n, machine)
	}
	without := hostMemory()
	if without > machine || without == 0 {
		t.Errorf("%d bytes of a machine with %d", without, machine)
	}
	heap := make([]byte, 100<<20)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(400 << 20))
	if got := hostMemory(); got > 300<<20 || got < 64<<20 {
		t.Errorf("%d MiB below a GOMEMLIMIT of 400 MiB, of which Go's heap has 100", got>>20)
	}
	debug.SetMemoryLimit(50 << 20)
	if got := hostMemory(); got != 64<<20 {
		t.Errorf("%d MiB where Go's heap is larger than GOMEMLIMIT, want 64", got>>20)
	}
	debug.SetMemoryLimit(math.MaxInt64)
	if got := hostMemory(); got != without {
		t.Errorf("%d bytes, want %d", got, without)
	}
	heap[0] = 1
}

// A share of a device whose memory is unknown is refused: as 0 bytes it would be no limit.
func TestShareOfUnknownMemory(t *testing.T) {
	balance.Hold(t, func() {})
	if n, err := Share(0.5).of(0); err == nil {
		t.Errorf("it is a limit of %d bytes", n)
	}
}

// settingsLine is what TestSettingsFromOutside compares: the settings of this process.
func settingsLine() string {
	if err := cshim.Load(); err != nil {
		return err.Error()
	}
	m, err := Stats(CPU)
	if err != nil {
		return err.Error()
	}
	a := accountOf(cpuWord)
	return fmt.Sprintf("settings: limit %.2f soft %.2f percent %d policy %T", float64(m.Limit)/float64(a.capacity),
		float64(m.SoftLimit)/float64(a.capacity), a.percent, CurrentPolicy())
}

// A policy that the program has set before libtorch is loaded is not replaced by the environment's, even if it is the
// default.
func TestPolicyBeforeTheEnvironment(t *testing.T) {
	t.Setenv("LINSTOCK_POLICY", "off")
	if !elsewhere.Process(t) {
		return
	}
	SetPolicy(nil)
	balance.Hold(t, func() {})
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	if p := CurrentPolicy(); p != Policy(Paced{}) {
		t.Errorf("the policy is %T", p)
	}
}

// Each case runs this test in a new process: defaults and the environment are read when libtorch is loaded.
func TestSettingsFromOutside(t *testing.T) {
	const child = "LINSTOCK_TEST_SETTINGS"
	if os.Getenv(child) != "" {
		fmt.Println(settingsLine())
		return
	}
	balance.Hold(t, func() {})
	for name, c := range map[string]struct {
		env       []string
		want      string
		complaint string
	}{
		"defaults":  {nil, "limit 0.90 soft 0.80 percent 100 policy vram.Paced", ""},
		"below":     {[]string{"LINSTOCK_LIMIT=45%"}, "limit 0.45 soft 0.40 percent 100 policy vram.Paced", ""},
		"shares":    {[]string{"LINSTOCK_LIMIT=50%", "LINSTOCK_SOFT_LIMIT=cpu=25%"}, "limit 0.50 soft 0.25 percent 100 policy vram.Paced", ""},
		"bytes":     {[]string{"GOMEMLIMIT=", "LINSTOCK_LIMIT=cpu=1B"}, "limit 0.00 soft 0.00 percent 100 policy vram.Paced", ""},
		"percent":   {[]string{"LINSTOCK_GCPERCENT=30"}, "limit 0.90 soft 0.80 percent 30 policy vram.Paced", ""},
		"off":       {[]string{"LINSTOCK_GCPERCENT=off", "LINSTOCK_POLICY=off"}, "limit 0.90 soft 0.80 percent -1 policy vram.Off", ""},
		"policies":  {[]string{"LINSTOCK_POLICY=Threshold"}, "limit 0.90 soft 0.80 percent 100 policy vram.Threshold", ""},
		"rates":     {[]string{"LINSTOCK_POLICY=rates"}, "limit 0.90 soft 0.80 percent 100 policy vram.Rates", ""},
		"liveshare": {[]string{"LINSTOCK_POLICY=liveshare"}, "limit 0.90 soft 0.80 percent 100 policy vram.LiveShare", ""},
		"rubbish": {[]string{"LINSTOCK_LIMIT=a lot", "LINSTOCK_GCPERCENT=x", "LINSTOCK_POLICY=y"},
			"limit 0.90 soft 0.80 percent 100 policy vram.Paced", `linstock: "a lot" in LINSTOCK_LIMIT is ignored: `},
		"no such device": {[]string{"LINSTOCK_SOFT_LIMIT=tpu:0=50%,30%"}, "limit 0.90 soft 0.30 percent 100 policy vram.Paced",
			`linstock: "tpu:0=50%" in LINSTOCK_SOFT_LIMIT is ignored: `},
		"no such CUDA device": {[]string{"LINSTOCK_SOFT_LIMIT=cuda:31=50%,30%"}, "limit 0.90 soft 0.30 percent 100 policy vram.Paced",
			`"cuda:31=50%" in LINSTOCK_SOFT_LIMIT is ignored: device cuda:31 does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSettingsFromOutside$")
			for _, v := range os.Environ() {
				switch name, _, _ := strings.Cut(v, "="); name {
				case "LINSTOCK_LIMIT", "LINSTOCK_SOFT_LIMIT", "LINSTOCK_GCPERCENT", "LINSTOCK_POLICY":
				default:
					cmd.Env = append(cmd.Env, v)
				}
			}
			cmd.Env = append(append(cmd.Env, child+"=1"), c.env...)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "settings: "+c.want+"\n") {
				t.Errorf("%v, %s; want %s", err, out, c.want)
			}
			if !strings.Contains(string(out), c.complaint) || c.complaint == "" && strings.Contains(string(out), "ignored") {
				t.Errorf("%q is to stand in %s", c.complaint, out)
			}
		})
	}
}
