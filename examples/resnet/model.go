package main

import (
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// Block is a residual block of He et al. 2015: two convolutions and a shortcut. If the shape changes, a 1×1 convolution
// adapts the shortcut.
type Block struct {
	Conv1 *nn.Conv2d
	BN1   *nn.BatchNorm2d
	Conv2 *nn.Conv2d
	BN2   *nn.BatchNorm2d
	Down  *nn.Sequential `nn:",optional"`
}

func newBlock(in, out, stride int) *Block {
	b := &Block{
		Conv1: nn.NewConv2d(in, out, 3, nn.Stride(stride), nn.Padding(1), nn.NoBias()),
		BN1:   nn.NewBatchNorm2d(out),
		Conv2: nn.NewConv2d(out, out, 3, nn.Padding(1), nn.NoBias()),
		BN2:   nn.NewBatchNorm2d(out),
	}
	if stride != 1 || in != out {
		b.Down = nn.NewSequential(nn.NewConv2d(in, out, 1, nn.Stride(stride), nn.NoBias()), nn.NewBatchNorm2d(out))
	}
	return b
}

// Forward maps x (N, in, H, W) to (N, out, H/stride, W/stride).
func (b *Block) Forward(x *tensor.Tensor) *tensor.Tensor {
	y := b.BN1.Forward(b.Conv1.Forward(x)).ReLU()
	y = b.BN2.Forward(b.Conv2.Forward(y))
	if b.Down != nil {
		x = b.Down.Forward(x)
	}
	return y.Add(x).ReLU()
}

// ResNet classifies images.
type ResNet struct {
	Stem   *nn.Sequential
	Blocks []*Block
	Head   *nn.Linear
}

func newResNet(classes int) *ResNet {
	return &ResNet{
		Stem:   nn.NewSequential(nn.NewConv2d(3, 16, 3, nn.Padding(1), nn.NoBias()), nn.NewBatchNorm2d(16), &nn.ReLU{}),
		Blocks: []*Block{newBlock(16, 16, 1), newBlock(16, 32, 2), newBlock(32, 64, 2)},
		Head:   nn.NewLinear(64, classes),
	}
}

// Forward maps images (N, 3, H, W) to logits (N, classes).
func (m *ResNet) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = m.Stem.Forward(x)
	for _, b := range m.Blocks {
		x = b.Forward(x)
	}
	return m.Head.Forward(x.AdaptiveAvgPool2d(1, 1).Flatten(tensor.StartDim(1)))
}
