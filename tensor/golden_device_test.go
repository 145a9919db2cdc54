package tensor

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/testdevice"
)

// On a GPU (see package testdevice) TestGolden compares with golden.py's results from the CPU or, if
// LINSTOCK_TEST_GOLDEN names a file written by golden.py, with those of Python's PyTorch on the same GPU. It
// prints lines of JSON for the kit's table.

// deviceTolerances are rtol and atol for a GPU against the CPU, which sums in another order, by the dtype of
// the result. A case's own tolerances apply if they are wider. TF32 is off (NVIDIA_TF32_OVERRIDE=0).
var deviceTolerances = map[DType][2]float64{
	Float64: {1e-7, 1e-9}, Complex128: {1e-7, 1e-9}, Float32: {2e-4, 2e-5}, Complex64: {2e-4, 2e-5},
	BFloat16: {4e-2, 2e-2}, Float16: {4e-3, 2e-3},
}

func (c *goldenCase) tolerances(d DType) (rtol, atol float64) {
	rtol, atol = c.RTol, c.ATol
	if t, ok := deviceTolerances[d]; ok && testdevice.On && testDevice() != CPU {
		rtol, atol = max(rtol, t[0]), max(atol, t[1])
	}
	return rtol, atol
}

// notDetermined are operators with more than one correct result. A GPU's results differ from the CPU's by a
// sign or an order, but not from Python's on the same GPU.
var notDetermined = strings.Fields("LinalgSVD LinalgQR LinalgEigh LinalgEig LinalgLU LinalgLUFactor LinalgLUFactorEx LinalgLDLFactor LinalgLDLFactorEx Geqrf " +
	"LinalgLstsq Median MedianDim NanMedian NanMedianDim Mode KthValue MaxDim MinDim TopK Sort ArgSort Unique UniqueConsecutive UniqueDim")

// random are operators that draw random numbers without an argument for a generator.
var random = strings.Fields("Rand Randn RandInt RandPerm RandLike RandnLike RandIntLike Dropout Dropout_ FeatureDropout FeatureDropout_ " +
	"AlphaDropout AlphaDropout_ FeatureAlphaDropout FeatureAlphaDropout_")

// fakeCannot are operators whose kernels do nothing on the fake CUDA runtime's devices.
var fakeCannot = strings.Fields("Ldexp Ldexp_ RMSNorm LSTM LSTMCell GRU GRUCell RNNTanh RNNReLU RNNTanhCell RNNReLUCell")

// firstOnly are operators whose further results are for their own backward passes, or undefined without an option. Those of
// EmbeddingBag contain memory that no kernel has written; the others are Python's on the same GPU.
var firstOnly = strings.Fields("EmbeddingBag UniqueConsecutive LinalgLstsq")

type goldenDevice struct {
	python   bool
	refusals map[string]string   // with Python: cases that it rejects on this device
	rows     map[string][]string // operators to report, by kind
	compared int
}

// newGoldenDevice prepares the cases for a GPU. It returns nil on the CPU.
func newGoldenDevice(t testing.TB, cases []goldenCase) *goldenDevice {
	if !testdevice.On || testDevice() == CPU {
		return nil
	}
	d := &goldenDevice{rows: map[string][]string{}, refusals: map[string]string{}}
	file := os.Getenv("LINSTOCK_TEST_GOLDEN")
	d.python = file != ""
	theirs := map[string]goldenCase{}
	if d.python {
		for _, c := range goldenCases(t, file) {
			theirs[c.Op+" "+c.Name] = c
		}
	}
	for i := range cases {
		c := &cases[i]
		if d.python {
			p, ok := theirs[c.Op+" "+c.Name]
			switch {
			case !ok:
				t.Errorf("%s %q: Python has no such case", c.Op, c.Name)
			case p.Error != "" && !strings.Contains(p.Error, "derivative"):
				d.refusals[c.Op+" "+c.Name] = p.Error
			case p.Error == "":
				*c = p
			}
		}
		if slices.Contains(firstOnly, c.Op) && (!d.python || c.Op == "EmbeddingBag") {
			c.firstOnly = true
			d.note("of several results the first alone must be right", c.Op)
		}
		if slices.Contains(fakeCannot, c.Op) && os.Getenv("LINSTOCK_GPU_DRY") == "1" {
			c.shapesOnly = true
			d.note("no kernel on the fake devices: shapes and dtypes alone are compared", c.Op)
		}
		if d.python {
			continue
		}
		if slices.Contains(random, c.Op) || drawsNumbers(c.Op) {
			c.shapesOnly = true
			d.note("random: shapes and dtypes alone are compared", c.Op)
		}
	}
	return d
}

// drawsNumbers reports whether the operator takes a generator.
func drawsNumbers(name string) bool {
	for _, o := range operators {
		if o.name == name {
			return slices.ContainsFunc(o.op.args, func(a argSpec) bool { return a.name == "generator" })
		}
	}
	return false
}

func (d *goldenDevice) note(kind, op string) {
	if !slices.Contains(d.rows[kind], op) {
		d.rows[kind] = append(d.rows[kind], op)
	}
}

// explain returns a case's error on a GPU, or nil if the difference is allowed there.
func (d *goldenDevice) explain(c *goldenCase, err error) error {
	if refusal := d.refusals[c.Op+" "+c.Name]; refusal != "" {
		if err == nil {
			return fmt.Errorf("Python refuses it on this device: %s", refusal)
		}
		d.note("refused on this device, by Python too", c.Op)
		return nil
	}
	if os.Getenv("LINSTOCK_GPU_DRY") == "1" && c.sparse() {
		d.note("no sparse kernels on the fake devices: not compared", c.Op)
		return nil
	}
	d.compared++
	switch {
	case err == nil:
		return nil
	case d.python:
		return err
	case strings.Contains(err.Error(), "backward can only be called in training mode"):
		d.note("cuDNN has no backward pass in evaluation", c.Op)
		return nil
	case noKernel(err):
		d.note("without a CUDA kernel, in a case at least", c.Op)
		return nil
	case slices.Contains(notDetermined, strings.TrimSuffix(c.Op, "_")) && strings.Contains(err.Error(), "differs by"):
		d.note("right in several ways; other than the CPU's", c.Op)
		return nil
	}
	return err
}

// sparse reports whether the case has a sparse tensor.
func (c *goldenCase) sparse() bool {
	return strings.Contains(c.Op, "Sparse") || slices.ContainsFunc(slices.Concat(c.Args, c.Out), func(v goldenValue) bool {
		return v.T != nil && v.T.Layout != ""
	})
}

// noKernel reports whether libtorch has no CUDA kernel for the case.
func noKernel(err error) bool {
	for _, text := range []string{"CUDA' backend", "not implemented for '", "not implemented on CUDA", "only supports CPU", "not supported on CUDA"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

func (d *goldenDevice) report(ops int) {
	with := "the CPU"
	if d.python {
		with = "Python on the same device"
	}
	line := func(v any) {
		if b, err := json.Marshal(v); err == nil {
			fmt.Printf("%s\n", b)
		}
	}
	type row struct {
		Row       string `json:"row"`
		Operators int    `json:"operators"`
		Cases     int    `json:"cases"`
		Which     string `json:"which"`
	}
	line(row{"values and gradients against " + with, ops, d.compared, "all but those that failed"})
	for kind, names := range d.rows {
		slices.Sort(names)
		line(row{kind, len(names), 0, strings.Join(names, " ")})
	}
}
