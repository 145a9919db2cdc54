package tensor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/testdevice"
)

// DeviceType is a type of device. The values are libtorch's.
type DeviceType int8

// The supported device types.
const (
	CPUType  DeviceType = 0
	CUDAType DeviceType = 1
	MPSType  DeviceType = 13
	MetaType DeviceType = 14
)

var deviceNames = map[DeviceType]string{CPUType: "cpu", CUDAType: "cuda", MPSType: "mps", MetaType: "meta"}

// Device is the device on which a tensor's storage is allocated. A Device is also the option device= of operators.
// PyTorch: torch.device.
type Device struct {
	Type  DeviceType
	Index int // 0 for the CPU
}

// CPU is the host.
var CPU = Device{CPUType, 0}

// Meta is the meta device: its tensors have shapes and dtypes, but no storage.
var Meta = Device{MetaType, 0}

// CUDA returns the i-th CUDA device.
func CUDA(i int) Device { return Device{CUDAType, i} }

// String returns PyTorch's name of the device, such as "cpu" or "cuda:0".
func (d Device) String() string {
	name, ok := deviceNames[d.Type]
	if !ok {
		name = fmt.Sprintf("device(%d)", int8(d.Type))
	}
	if d.Type == CPUType || d.Type == MetaType {
		return name
	}
	return fmt.Sprintf("%s:%d", name, d.Index)
}

// ParseDevice parses a device name: "cpu", "cuda", "cuda:1", "mps" or "meta". The error is ErrArgument.
func ParseDevice(s string) (Device, error) {
	name, index, has := strings.Cut(s, ":")
	for typ, n := range deviceNames {
		if n != name {
			continue
		}
		d := Device{Type: typ}
		if has {
			i, err := strconv.ParseUint(index, 10, 7)
			if err != nil {
				break
			}
			d.Index = int(i)
		}
		return d, nil
	}
	return Device{}, &Error{Op: "device", Message: fmt.Sprintf("unknown device %q: want cpu, cuda, cuda:N, mps or meta", s), Kind: ErrArgument}
}

// MarshalText returns the device's name, for JSON, logs and flags.
func (d Device) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText sets d to the device with a name, as [ParseDevice] does.
func (d *Device) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDevice(string(text))
	return err
}

// testDevice is the device that constructors use if they are given none: the CPU, except in tests on a device
// (see package testdevice).
func testDevice() Device {
	d, err := ParseDevice(testdevice.Name())
	if err != nil {
		return Device{Type: -1} // which every constructor rejects
	}
	return d
}

// word returns the device as the shim encodes it.
func (d Device) word() int32 {
	index := d.Index
	if d.Type == CPUType || d.Type == MetaType {
		index = 0xff // libtorch's "no index", which CPU tensors have
	}
	return cshim.DeviceWord(int32(d.Type), index)
}

// errNoDevice is the kind of an error about a device of a type that has none here.
var errNoDevice = fmt.Errorf("%w (%w)", ErrArgument, errors.ErrUnsupported)

// check returns the error of an operator for a device that does not exist. For a type that has no devices here libtorch
// reports that an operator has no kernel. The shim, after Load, reports an index that is too large.
func (d Device) check(op string) error {
	if d.Type < 0 || d.Index < 0 || d.Index >= 128 {
		return refused(op, ErrArgument, "device %v does not exist", d)
	}
	switch d.Type {
	case CPUType, MetaType:
	case CUDAType:
		if n, _ := cshim.CUDA(); n == 0 {
			return refused(op, errNoDevice, "device %v does not exist; no CUDA device can be used: %s", d, cshim.NoCUDA())
		}
	default:
		if cshim.DeviceCount(int32(d.Type)) == 0 {
			return refused(op, errNoDevice, "device %v does not exist; this libtorch finds no device of that type", d)
		}
	}
	return nil
}

// Devices returns the devices on which this process can compute: the CPU and each accelerator that libtorch found.
func Devices() ([]Device, error) {
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	all := []Device{CPU}
	for _, typ := range []DeviceType{CUDAType, MPSType} {
		for i := range cshim.DeviceCount(int32(typ)) {
			all = append(all, Device{typ, i})
		}
	}
	return all, nil
}

// Synchronize waits until all work queued on d is done. PyTorch: torch.cuda.synchronize.
func Synchronize(d Device) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	if err := d.check("synchronize"); err != nil {
		return err
	}
	return newError("synchronize", cshim.Synchronize(d.word()))
}
