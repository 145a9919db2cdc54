package vram

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
)

// AllocatorSetting is an option of libtorch's caching allocator, for [SetAllocatorSettings]: [MaxSplitSizeMB],
// [GarbageCollectionThreshold] or [ExpandableSegments].
type AllocatorSetting struct {
	key, value string // value is empty where the option goes back to its default
	err        error
}

// smallestSplit is the least max_split_size_mb that libtorch takes: the size of a segment for blocks that share one.
const smallestSplit = 20

// MaxSplitSizeMB keeps blocks of n MiB and more whole: a free one is given only to a request that is nearly as large, and no
// part of it to a smaller one. That limits fragmentation where a program's large blocks change their sizes. n is at least
// 20; 0 is the default: any block may be split. PyTorch: max_split_size_mb.
func MaxSplitSizeMB(n int) AllocatorSetting {
	s := AllocatorSetting{key: "max_split_size_mb"}
	switch {
	case n < 0 || n > 0 && n < smallestSplit:
		s.err = fmt.Errorf("vram: MaxSplitSizeMB(%d): at least %d is needed, or 0 for no maximum", n, smallestSplit)
	case n > 0:
		s.value = strconv.Itoa(n)
	}
	return s
}

// GarbageCollectionThreshold has the allocator free cached blocks that have not been used for long when a new segment is
// needed and it holds more than this share of what it may hold: of the device's limit ([SetLimit]), or of its memory where
// there is none. The share is greater than 0 and less than 1; 0 is the default: cached blocks are freed only when the device
// has no more. No tensor is affected; the pacer decides by live bytes, which this does not change. PyTorch:
// garbage_collection_threshold.
func GarbageCollectionThreshold(share float64) AllocatorSetting {
	s := AllocatorSetting{key: "garbage_collection_threshold"}
	switch {
	case !(share >= 0 && share < 1):
		s.err = fmt.Errorf("vram: GarbageCollectionThreshold(%v): a share greater than 0 and less than 1 is needed, or 0 for none", share)
	case share > 0:
		s.value = strconv.FormatFloat(share, 'f', -1, 64)
	}
	return s
}

// ExpandableSegments has the allocator make segments that grow, from which blocks of all sizes come: there is next to no
// fragmentation then. Segments that were made before stay as they are. The default is false. PyTorch: expandable_segments.
func ExpandableSegments(on bool) AllocatorSetting {
	return AllocatorSetting{key: "expandable_segments", value: map[bool]string{false: "False", true: "True"}[on]}
}

// AllocatorSettings are the options of libtorch's caching allocator for CUDA devices.
type AllocatorSettings struct {
	MaxSplitSizeMB             int     // MiB; 0: any block may be split
	GarbageCollectionThreshold float64 // 0: none
	ExpandableSegments         bool
	Conf                       string // what set them, as in PYTORCH_CUDA_ALLOC_CONF
}

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

// SetAllocatorSettings sets options of libtorch's caching allocator, for all CUDA devices. Those that are not given stay as
// they are: at first as the environment's PYTORCH_CUDA_ALLOC_CONF says, or PYTORCH_ALLOC_CONF where that is not set. Call it
// while no goroutine uses a CUDA device, best before the first use: blocks and segments that exist stay as they are. It
// returns an error where there is no CUDA device. PyTorch: torch.cuda.memory._set_allocator_settings.
//
//	err := vram.SetAllocatorSettings(vram.ExpandableSegments(true))
func SetAllocatorSettings(settings ...AllocatorSetting) error {
	for _, s := range settings {
		if s.err != nil {
			return s.err
		}
		if s.key == "" {
			return errors.New("vram: SetAllocatorSettings: an empty AllocatorSetting")
		}
	}
	settingAllocator.Lock()
	defer settingAllocator.Unlock()
	now, err := ReadAllocatorSettings()
	if err != nil {
		return err
	}
	conf := now.Conf
	for _, s := range settings {
		conf = withSetting(conf, s.key, s.value)
	}
	if err := cshim.CUDASetAllocatorSettings(conf); err != nil {
		return fmt.Errorf("vram: SetAllocatorSettings: %q: %w", conf, err)
	}
	return nil
}

// ReadAllocatorSettings returns the options that are in force. It returns an error where there is no CUDA device.
func ReadAllocatorSettings() (AllocatorSettings, error) {
	if err := cshim.Load(); err != nil {
		return AllocatorSettings{}, err
	}
	if n, why := cshim.CUDA(); n == 0 {
		if why == "" {
			why = "libtorch was set up without CUDA"
		}
		return AllocatorSettings{}, fmt.Errorf("vram: the allocator of CUDA devices has no settings here: %s", why)
	}
	s, conf, err := cshim.CUDAAllocatorSettings()
	if err != nil {
		return AllocatorSettings{}, fmt.Errorf("vram: the allocator's settings: %w", err)
	}
	return AllocatorSettings{int(s.MaxSplitSize >> 20), s.GarbageCollectionThreshold, s.ExpandableSegments != 0, conf}, nil
}

// withSetting is a text of settings with the one under key replaced, or taken out where value is empty.
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
