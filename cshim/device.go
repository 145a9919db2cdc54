package cshim

/*
#include "table_gen.h"
*/
import "C"

import "math/bits"

// DeviceType is a type of device that has its own memory. The CPU has no DeviceType.
type DeviceType struct {
	Number int32 // c10::DeviceType
	Name   string
}

// DeviceTypes are the supported types. To support another one, add a row here, a row in src/device.h, and a
// library beside cuda/ that is opened as in cuda.go.
var DeviceTypes = []DeviceType{
	{1, "cuda"},
}

// Word returns the shim's number of a device.
func (t DeviceType) Word(index int) int32 { return DeviceWord(t.Number, index) }

// DeviceWord returns the shim's number of a device of c10::DeviceType typ. An index of 0xff is none, as CPU tensors have it.
func DeviceWord(typ int32, index int) int32 { return typ<<8 | int32(index)&0xff }

// Count returns the number of devices of the type that libtorch can use.
func (t DeviceType) Count() int { return int(C.lsc_device_count(C.int32_t(t.Number))) }

// Used returns the indices of the devices that this process has used and that are not lost.
func (t DeviceType) Used() (indices []int) {
	if Path() == "" {
		return nil
	}
	for used := uint64(C.lsc_device_used(C.int32_t(t.Number))); used != 0; used &= used - 1 {
		indices = append(indices, bits.TrailingZeros64(used))
	}
	return indices
}

// DeviceName returns the driver's name of a device.
func DeviceName(device int32) (string, error) {
	return text(C.lsc_device_name(C.int32_t(device), nil, 0), nil)
}
