package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/internal/testdevice"
)

// A goPackage is a package whose tests the kit runs on the device. Built with the tag linstock_device, they
// allocate their tensors there (internal/testdevice). Tests that cannot pass there are left out and listed in
// the table with the reason.
type goPackage struct {
	name  string
	limit time.Duration
	out   []leftOut
}

type leftOut struct {
	tests  string // separated by spaces
	reason string
	dry    bool // with the fake runtime only
}

const (
	texts   = "expects a text without the device's name"
	figures = "limits the CPU's memory or reads its figures; the part memory does so on the device"
	numbers = "expects the numbers of the CPU's random generator"
	onCPU   = "packs weights for the CPU's quantized kernels, makes tensors of oneDNN, or casts on the CPU"
	bounds  = "arguments outside of their bounds end a device; part faults does so on purpose"
	above   = "injects failures above the device"
	kernel  = "expects what the CPU's kernels do with repeated indices and the least integers, and the dtypes that they have"
	noCode  = "the fake devices have only a kernel that does nothing"
)

var goPackages = []goPackage{
	{"tensor", 4 * time.Minute, []leftOut{
		{"TestPrintGolden TestErrorContents TestAdviceInGo TestNestedTensor ExampleTensor ExampleTensor_Index ExampleTensor_Err " +
			"ExampleScope ExampleTidy ExampleTensor_Backward ExampleCall ExampleReplace TestPrintInvalid", texts, false},
		{"TestGolden", "a step of its own", false},
		{"TestHostile TestGoldenWithoutOptions", bounds, false},
		{"TestSetIndexConverts TestSetIndexOfSharedMemory TestNumbersAsOptions TestNumbersAboveInt64", kernel, false},
		{"TestOpenMP", "counts the threads of the CPU's operators", false},
		{"TestSettings", "saves the state of the CPU's generator and draws from the device's", false},
		{"TestGenerator TestGeneratorState TestForkRNG TestGeneratorOfGoroutines TestGeneratorThatCannotBeUsed", numbers, false},
		{"TestLayoutOption TestPrintLayouts TestPrintForeignDTypes TestTextForms", texts, false},
		{"TestScriptObject TestScriptObjectIsCollected TestScriptObjectReleasedBesideCalls TestAutocastMode TestSetIndexRefusesLayouts", onCPU, false},
		{"TestStrides", "expects the rounding of the CPU's kernels, which is the same for all strides", false},
		{"TestMedianOfExpanded TestExpandedWeights TestStatisticsInEvaluation TestGroupNormOfChannelsLast TestAttentionOfZeros TestLDLSolveBroadcasts TestGroupNormOfZeros TestListsThatAreReturned",
			"the kernels that replace CUDA's are libtorch's, without the shim's in their place", true},
		{"TestRefusals TestInternalErrors TestIndicesOfSparseTensors TestCompressed TestCompressedGradients TestSparseGradients TestSparseGradientsOfRows TestSparseSum TestSparseMM TestComposites TestCompositesRefuse TestOneNumberForAllDimensions", "makes sparse tensors, " + "for which " + noCode, true},
	}},
	{"autograd", 2 * time.Minute, []leftOut{
		{"TestCheckpointNotDeterministic TestPrintDual", texts, false},
		{"TestGoexitInAPass", "ends a thread of libtorch's, on which the Go runtime ends the process", false},
		{"TestOrderOnSeveralThreads", "the kernels that replace CUDA's load libtorch before the shim, which then counts no nodes", true},
		{"TestCheckpointGolden", numbers, false},
		{"TestCheckpointPeak TestSavedTensors TestSavedTensorsAndCheckpoint", figures, false},
		{"TestAutocastNests TestAutocastDTypes TestAutocastCastsOnce TestAutocastGradientAfterUnrecordedCast " +
			"TestAutocastSeesChangedWeights TestAutocastGoroutines TestAutocastCheckpoint ExampleAutocast", onCPU, false},
	}},
	{"nn", 2 * time.Minute, []leftOut{
		{"TestInit TestInitFromGenerator TestNoFeatures", numbers, false},
		{"TestStringOfParameters", texts, false},
		{"TestLoadCopiesAllOrNothing", "makes sparse tensors, for which " + noCode, true},
		{"TestHostileForward TestHostileInputs", bounds, false},
		{"TestFailingOperators", above, false},
		{"TestSDPAKernel TestSDPAKernelNests", "expects the CPU's backends of attention", false},
		{"TestNewParameter", figures, false},
		{"TestComplexRecurrentLayers", "the recurrent kernels of CUDA take no complex numbers", false},
		{"TestAutocastTraining", onCPU, false},
		{"TestBFloat16Training", "trains with kernels that the fake devices do not have", true},
		{"TestEightBits TestEightBitsEdges TestToOfEightBits TestLoRAOverEightBits TestLoRAOfOtherDTypes TestProducts TestFloat8Training", "multiplies fewer rows and other widths than CUDA's kernels for 8 bits take", false},
		{"TestProductErrors", "the ends of groups are checked on the CPU", false},
		{"TestFloat8TrainingMemory", figures, false},
		{"TestEightBitsWide/float8_rows TestFloat8TrainingWide/rowwise TestFloat8TrainingWide/rowwise_with_gw_hp TestFloat8TrainingEdges", "the kernel that replaces CUDA's has no scales for rows in libtorch 2.11", true},
		{"TestStrides TestFlatWeights", "compares recurrent layers and RMSNorm, for which " + noCode, true},
		{"TestTo", "moves a module to the CPU and continues there", false},
		{"TestTorchModules/gumbel_softmax TestTorchModules/gumbel_softmax_hard TestTorchModules/sparse_ " +
			"TestTorchModules/FractionalMaxPool2d_ratio TestTorchModules/FractionalMaxPool3d_ratio", numbers, false},
		{"TestModules/rms_norm TestModules/rms_norm_eps TestTorchModules/RMSNorm TestTorchModules/EmbeddingBag_sparse " +
			"TestTorchModules/GRU TestTorchModules/GRU_deep TestTorchModules/GRU_packed TestTorchModules/GRU_packed_states " +
			"TestTorchModules/GRU_states TestTorchModules/GRU_unbatched TestTorchModules/GRUCell TestTorchModules/GRUCell_states " +
			"TestTorchModules/GRUCell_unbatched TestTorchModules/LSTM TestTorchModules/LSTM_deep TestTorchModules/LSTM_packed " +
			"TestTorchModules/LSTM_packed_states TestTorchModules/LSTM_projection TestTorchModules/LSTM_projection_packed " +
			"TestTorchModules/LSTM_projection_states TestTorchModules/LSTM_states TestTorchModules/LSTM_unbatched " +
			"TestTorchModules/LSTMCell TestTorchModules/LSTMCell_states TestTorchModules/LSTMCell_unbatched TestTorchModules/weight_norm_lstm", noCode, true},
	}},
	{"optim", 2 * time.Minute, []leftOut{
		{"TestLoadStateDictPeak", figures, false},
		{"TestFailingOperators", above, false},
		{"TestLowPrecision/SGD TestLowPrecision/SGD_momentum TestLowPrecision/SGD_Nesterov TestLowPrecision/SGD_dampening",
			"the kernel that replaces CUDA's is the CPU's, which skips most elements of 16 bits before libtorch 2.14", true},
		{"TestOptimizers/adagrad_sparse TestOptimizers/sparse_adam TestOptimizers/sparse_adam_options TestResume/adagrad_sparse " +
			"TestResume/sparse_adam TestResume/sparse_adam_options TestLoadPyTorchState/adagrad_sparse TestLoadPyTorchState/sparse_adam TestLoadPyTorchState/sparse_adam_options TestSparseStepPeak " +
			"TestRefusedGradientChangesNothing TestStateDictFlags TestGradScalerSparse TestZerosOfSchedules",
			"makes sparse tensors, for which " + noCode, true},
		{"TestStochasticRounding TestStochasticRoundingSticksNowhere TestStochasticRoundingOfSpecialNumbers",
			"draws random integers, for which " + noCode, true},
	}},
	{"data", time.Minute, []leftOut{{"TestDefaultCollate TestTensorDatasetOnDevices", texts, false}}},
	{"checkpoint", 2 * time.Minute, []leftOut{
		{"TestModelsOnMappedFiles", "trains weights that lie in a file, which are on the CPU", false},
		{"TestSavePyTorchRefuses", "makes sparse tensors, for which " + noCode, true},
	}},
	{"vram", 3 * time.Minute, []leftOut{
		{"TestAnErrorNamesAReclaimerThatBlocks TestAnErrorNamesACleanupThatBlocks TestExplainAttributesATrainingStep " +
			"TestTrackedTensorsAreFreed TestMetricsFollowTheCounts TestPolicies TestGCPercentOffSweepsOnlyAtTheLimit " +
			"TestOutOfMemoryErrorSuggestsRemedies TestLimitInsideBackward TestReclaimers TestReclaimersRunOnOneThread " +
			"TestCacheIsLimitedAndShrinksWhenIdle TestAccounting TestCountsSince " +
			"TestSeedRTorchCollectsAndTriesAgainBeforeAnError TestSeedGoDlFreesBeforeTheRetry " +
			"TestSeedGoDlBudgetCountsStoragesAndBacksOff TestSeedFloDlOutOfMemoryIsTyped TestSeedTorchSharpLeaksAreFoundByLine " +
			"TestSeedArticleTechniques TestSnapshotHoldsLiveBlocksAndHistory TestHistoryIsBoundedAndEnds " +
			"TestReportsOfACUDADevice TestHistoryHoldsOutOfMemoryErrors TestPeakFollowsAndResets TestOther Example_summary Example " +
			"TestABlockedFinalizerStaysKnown TestOutOfMemoryOfTheSystem TestFinalizersOfEveryCollection TestProfileOfFailedCalls " +
			"TestReclaimerBesideBusyGoroutines TestFewCollectionsBeforeAnError", figures, false},
		{"TestProfileNamesTheLine", "runs go tool pprof", false},
	}},
	{"distributions", time.Minute, []leftOut{{"TestFailingOperators", above, false}, {"ExampleNewCategorical ExampleKLDivergence ExampleTransformTo", texts, false}, {"TestWishartOfTwoDTypes", numbers, false}}},
	{"profiler", time.Minute, []leftOut{{"TestEventsArePyTorchs", "expects the events inside the CPU's operators", false}}},
}

// workspace is testdevice.Workspace in KiB.
var workspace = itoa(testdevice.Workspace >> 10)

// exact is the environment of programs that compare values and bytes: TF32 would require wider tolerances, and cuBLAS's
// workspaces have the size of testdevice.Workspace.
var exact = []string{"NVIDIA_TF32_OVERRIDE=0", "CUBLAS_WORKSPACE_CONFIG=:" + workspace + ":1", "CUBLASLT_WORKSPACE_SIZE=" + workspace}

// onDevice is the environment of tests on the device.
var onDevice = append([]string{"LINSTOCK_TEST_DEVICE=cuda:0"}, exact...)

// kernels makes the fake devices compute (tests/fakecuda/kernels), so that the dry run can compare values.
var kernels = []string{"LD_PRELOAD={kernels}"}

// goSteps returns the steps of the Go packages.
func goSteps() (steps []step) {
	for _, p := range goPackages {
		pattern := func(dry bool) string {
			var all []string
			for _, o := range p.out {
				if !o.dry || dry {
					for _, t := range strings.Fields(o.tests) {
						all = append(all, "^"+strings.ReplaceAll(t, "/", "$/^")+"$")
					}
				}
			}
			return strings.Join(all, "|")
		}
		argv := fmt.Sprintf("{repo}/%s/%s.test -test.v {short} -test.timeout %v", p.name, p.name, p.limit-10*time.Second)
		s := step{name: "go-" + p.name, shows: "package " + p.name + "'s tests on the device", argv: argv, dir: p.name, env: onDevice,
			dryEnv: kernels, limit: p.limit, read: p.read}
		if out := pattern(false); out != "" {
			s.argv += " -test.skip " + out
		}
		if out := pattern(true); out != "" {
			s.argv, s.dry = s.argv+" {dry}", "-test.skip "+out // the last one applies
		}
		steps = append(steps, s)
	}
	return steps
}

var testName = regexp.MustCompile(`(?m)^=== RUN   (\S+)`)

func (p *goPackage) read(stdout, all []byte, res *stepResult) error {
	if err := readGoTest(stdout, all, res); err != nil {
		return err
	}
	for _, o := range p.out {
		line, err := json.Marshal(struct {
			Row    string `json:"row"`
			Left   int    `json:"left out"`
			Reason string `json:"reason"`
			Tests  string `json:"which"`
		}{"left out" + map[bool]string{true: " in a dry run"}[o.dry], len(strings.Fields(o.tests)), o.reason, o.tests})
		if err != nil {
			return err
		}
		res.Rows = append(res.Rows, line)
		// A renamed test would no longer be left out, although the table says so.
		for _, m := range testName.FindAllSubmatch(all, -1) {
			if slices.Contains(strings.Fields(o.tests), string(m[1])) && !o.dry {
				res.fail(string(m[1]) + " ran, and should have been left out")
			}
		}
	}
	return nil
}
