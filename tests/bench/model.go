package main

import (
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// device is the device of the tasks.
var device = tensor.CPU

// Sizes of examples/chargpt, as in cpp/arm.cpp and arm.py.
const (
	positions = 64
	vocab     = 97
)

var small = gpt.Config{Vocab: vocab, Width: 128, Layers: 4, Heads: 4, Context: positions}

// The GPTs of 10 and 350 million parameters, and their batches.
var large = map[string]struct {
	gpt.Config
	rows int
}{
	"gpt10m":  {gpt.Config{Vocab: 65, Width: 384, Layers: 6, Heads: 6, Context: 256}, 64},
	"gpt350m": {gpt.Config{Vocab: 24576, Width: 1024, Layers: 24, Heads: 16, Context: 1024}, 4},
}

func newGPT() *gpt.GPT { return gpt.New(small, nn.Device(device)) }

// newMLP returns 32→64→64→10 with ReLU in between.
func newMLP() *nn.Sequential {
	on := nn.Device(device)
	return nn.NewSequential(nn.NewLinear(32, 64, on), &nn.ReLU{}, nn.NewLinear(64, 64, on), &nn.ReLU{}, nn.NewLinear(64, 10, on))
}

// newLayers returns 256 linear layers of 4 MiB.
func newLayers() (*nn.Sequential, error) {
	var layers []nn.Layer
	for range 256 {
		layers = append(layers, nn.NewLinear(1024, 1024, nn.NoBias(), nn.Device(device)))
	}
	model := nn.NewSequential(layers...)
	return model, nn.Check(model)
}

// bottleneck is the block of ResNet-50: three convolutions, and a shortcut around them.
type bottleneck struct {
	Conv1, Conv2, Conv3 *nn.Conv2d
	BN1, BN2, BN3       *nn.BatchNorm2d
	Down                *nn.Sequential `nn:",optional"`
}

func newConv(in, out, kernel, stride int) (*nn.Conv2d, *nn.BatchNorm2d) {
	on := nn.Device(device)
	return nn.NewConv2d(in, out, kernel, nn.Stride(stride), nn.Padding(kernel/2), nn.NoBias(), on), nn.NewBatchNorm2d(out, on)
}

func newBottleneck(in, mid, stride int) *bottleneck {
	b := &bottleneck{}
	b.Conv1, b.BN1 = newConv(in, mid, 1, 1)
	b.Conv2, b.BN2 = newConv(mid, mid, 3, stride)
	b.Conv3, b.BN3 = newConv(mid, 4*mid, 1, 1)
	if stride != 1 || in != 4*mid {
		conv, bn := newConv(in, 4*mid, 1, stride)
		b.Down = nn.NewSequential(conv, bn)
	}
	return b
}

func (b *bottleneck) Forward(x *tensor.Tensor) *tensor.Tensor {
	y := b.BN1.Forward(b.Conv1.Forward(x)).ReLU()
	y = b.BN2.Forward(b.Conv2.Forward(y)).ReLU()
	y = b.BN3.Forward(b.Conv3.Forward(y))
	if b.Down != nil {
		x = b.Down.Forward(x)
	}
	return y.Add(x).ReLU()
}

// newResNet50 returns torchvision's resnet50 for 1,000 classes.
func newResNet50() *nn.Sequential {
	conv, bn := newConv(3, 64, 7, 2)
	m := nn.NewSequential(conv, bn, &nn.ReLU{}, nn.NewMaxPool2d(3, nn.Stride(2), nn.Padding(1)))
	in := 64
	for stage, blocks := range []int{3, 4, 6, 3} {
		mid := 64 << stage
		for i := range blocks {
			stride := 1
			if i == 0 && stage > 0 {
				stride = 2
			}
			m.Layers = append(m.Layers, newBottleneck(in, mid, stride))
			in = 4 * mid
		}
	}
	m.Layers = append(m.Layers, nn.NewAdaptiveAvgPool2d(1, 1), nn.NewFlatten(1, -1), nn.NewLinear(in, 1000, nn.Device(device)))
	return m
}
