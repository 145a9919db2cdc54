package vram

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/options"
)

// AllocatorSetting is an argument of [SetAllocatorSettings]. [MaxSplitSizeMB], [GarbageCollectionThreshold] and
// [ExpandableSegments] return one.
type AllocatorSetting struct {
	key, value string // an empty value restores the default
	err        error
}

// smallestSplit is the least max_split_size_mb that libtorch accepts, which is the size of a segment of small blocks.
const smallestSplit = 20

// MaxSplitSizeMB makes the allocator not split blocks of n MiB and more: it uses a free one only for a request of nearly that
// size. This limits fragmentation if the sizes of large blocks vary. n is at least 20; 0, the default, lets any block be
// split. PyTorch: max_split_size_mb.
func MaxSplitSizeMB(n int) AllocatorSetting {
	s := AllocatorSetting{key: "max_split_size_mb"}
	switch {
	case n < 0 || n > 0 && n < smallestSplit:
		s.err = refused("MaxSplitSizeMB(%d): want at least %d, or 0 for no maximum", n, smallestSplit)
	case n > 0:
		s.value = strconv.Itoa(n)
	}
	return s
}

// GarbageCollectionThreshold makes the allocator free old cached blocks when it needs a new segment and holds more than this
// share of the device's hard limit ([SetLimit]), or of its memory if there is none. The share is more than 0 and less than
// 1; with 0, the default, cached blocks are freed only when the device has no memory left. It frees no tensor and does not
// affect when sweeps run. PyTorch: garbage_collection_threshold.
func GarbageCollectionThreshold(share float64) AllocatorSetting {
	s := AllocatorSetting{key: "garbage_collection_threshold"}
	switch {
	case !(share >= 0 && share < 1):
		s.err = refused("GarbageCollectionThreshold(%v): want a share more than 0 and less than 1, or 0 for none", share)
	case share > 0:
		s.value = strconv.FormatFloat(share, 'f', -1, 64)
	}
	return s
}

// ExpandableSegments makes the allocator use segments that grow, for blocks of all sizes, which avoids most fragmentation.
// Existing segments stay as they are. The default is false. PyTorch: expandable_segments.
func ExpandableSegments(on ...bool) AllocatorSetting {
	return AllocatorSetting{key: "expandable_segments", value: map[bool]string{false: "False", true: "True"}[options.On(on)]}
}

// AllocatorSettings is the options of libtorch's caching allocator for CUDA devices.
type AllocatorSettings struct {
	MaxSplitSizeMB             int     // MiB; 0: any block may be split
	GarbageCollectionThreshold float64 // 0: none
	ExpandableSegments         bool
	Conf                       string // the settings as text, in the format of PYTORCH_CUDA_ALLOC_CONF
}

// String returns the three options with their values.
func (s AllocatorSettings) String() string {
	split, threshold, expandable := "none", "none", "off"
	if s.MaxSplitSizeMB != 0 {
		split = strconv.Itoa(s.MaxSplitSizeMB)
	}
	if s.GarbageCollectionThreshold != 0 {
		threshold = strconv.FormatFloat(s.GarbageCollectionThreshold, 'g', -1, 64)
	}
	if s.ExpandableSegments {
		expandable = "on"
	}
	return fmt.Sprintf("max_split_size_mb %s, garbage_collection_threshold %s, expandable_segments %s", split, threshold, expandable)
}

var settingAllocator sync.Mutex

// SetAllocatorSettings sets options of libtorch's caching allocator for all CUDA devices. Other options do not change; their
// first values are those of PYTORCH_CUDA_ALLOC_CONF, or of PYTORCH_ALLOC_CONF if that is not set. Call it while no
// goroutine uses a CUDA device, best before the first use: existing blocks and segments do not change. It returns an error
// if there is no CUDA device. PyTorch: torch.cuda.memory._set_allocator_settings.
//
//	err := vram.SetAllocatorSettings(vram.ExpandableSegments(true))
func SetAllocatorSettings(settings ...AllocatorSetting) error {
	for _, s := range settings {
		if s.err != nil {
			return s.err
		}
		if s.key == "" {
			return refused("SetAllocatorSettings: an empty AllocatorSetting")
		}
	}
	settingAllocator.Lock()
	defer settingAllocator.Unlock()
	now, err := allocatorSettings()
	if err != nil {
		return err
	}
	conf := now.Conf
	for _, s := range settings {
		conf = withSetting(conf, s.key, s.value)
	}
	if err := cshim.CUDASetAllocatorSettings(conf); err != nil {
		return fmt.Errorf("linstock: vram: SetAllocatorSettings: %q: %w", conf, err)
	}
	return nil
}

// ReadAllocatorSettings returns the options in force. It returns an error if there is no CUDA device.
func ReadAllocatorSettings() (AllocatorSettings, error) {
	settingAllocator.Lock() // libtorch sets the options one after another
	defer settingAllocator.Unlock()
	return allocatorSettings()
}

func allocatorSettings() (AllocatorSettings, error) {
	if err := cshim.Load(); err != nil {
		return AllocatorSettings{}, err
	}
	if n, _ := cshim.CUDA(); n == 0 {
		return AllocatorSettings{}, fmt.Errorf("linstock: vram: no CUDA device can be used: %s (%w)", cshim.NoCUDA(), errors.ErrUnsupported)
	}
	s, conf, err := cshim.CUDAAllocatorSettings()
	if err != nil {
		return AllocatorSettings{}, fmt.Errorf("linstock: vram: the allocator's settings: %w", err)
	}
	return AllocatorSettings{int(s.MaxSplitSize >> 20), s.GarbageCollectionThreshold, s.ExpandableSegments != 0, conf}, nil
}

// withSetting returns conf with the value of key replaced, or without key if value is empty.
func withSetting(conf, key, value string) string {
	var kept []string
	depth, start := 0, 0
	for i := 0; i <= len(conf); i++ {
		if i == len(conf) || conf[i] == ',' && depth == 0 {
			part := strings.TrimSpace(conf[start:i])
			if k, _, _ := strings.Cut(part, ":"); part != "" && strings.TrimSpace(k) != key {
				kept = append(kept, part)
			}
			start = i + 1
			continue
		}
		switch conf[i] {
		case '[':
			depth++
		case ']':
			depth--
		}
	}
	if value != "" {
		kept = append(kept, key+":"+value)
	}
	return strings.Join(kept, ",")
}
