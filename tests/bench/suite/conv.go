package main

import (
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

func conv3(in, out int, opts ...nn.Option) *nn.Conv2d {
	return nn.NewConv2d(in, out, 3, append([]nn.Option{nn.Padding(1)}, opts...)...)
}

// convnet trains three convolutions with pooling and two linear layers on 32 images of 3×32×32.
func convnet(n *numbers) (step, error) {
	m := nn.NewSequential(
		conv3(3, 16), &nn.ReLU{}, nn.NewMaxPool2d(2),
		conv3(16, 32), &nn.ReLU{}, nn.NewMaxPool2d(2),
		conv3(32, 64), &nn.ReLU{}, nn.NewMaxPool2d(2),
		nn.NewFlatten(1, -1), nn.NewLinear(64*4*4, 128), &nn.ReLU{}, nn.NewLinear(128, 10))
	x, y := n.floats(32, 3, 32, 32), n.ints(10, 32)
	return training(n, m, adam, func() *tensor.Tensor { return nn.CrossEntropy(m.Forward(x), y) })
}

// upsample returns a transposed convolution that doubles height and width.
func upsample(in, out int, opts ...nn.Option) *nn.ConvTranspose2d {
	return nn.NewConvTranspose2d(in, out, 4, append([]nn.Option{nn.Stride(2), nn.Padding(1)}, opts...)...)
}

// autoencoder trains two convolutions and two transposed ones to draw their input, 32 images of 1×32×32.
func autoencoder(n *numbers) (step, error) {
	m := nn.NewSequential(
		conv3(1, 16, nn.Stride(2)), &nn.ReLU{}, conv3(16, 32, nn.Stride(2)), &nn.ReLU{},
		upsample(32, 16), &nn.ReLU{}, upsample(16, 1), &nn.Tanh{})
	x := n.floats(32, 1, 32, 32)
	return training(n, m, adam, func() *tensor.Tensor { return nn.MSELoss(m.Forward(x), x) })
}

// basicBlock is the block of ResNet-18: two convolutions, and a shortcut around them.
type basicBlock struct {
	Conv1 *nn.Conv2d
	BN1   *nn.BatchNorm2d
	Conv2 *nn.Conv2d
	BN2   *nn.BatchNorm2d
	Down  *nn.Sequential `nn:",optional"`
}

func newBasicBlock(in, out, stride int) *basicBlock {
	b := &basicBlock{
		Conv1: conv3(in, out, nn.Stride(stride), nn.NoBias()), BN1: nn.NewBatchNorm2d(out),
		Conv2: conv3(out, out, nn.NoBias()), BN2: nn.NewBatchNorm2d(out),
	}
	if stride != 1 {
		b.Down = nn.NewSequential(nn.NewConv2d(in, out, 1, nn.Stride(stride), nn.NoBias()), nn.NewBatchNorm2d(out))
	}
	return b
}

func (b *basicBlock) Forward(x *tensor.Tensor) *tensor.Tensor {
	y := b.BN1.Forward(b.Conv1.Forward(x)).ReLU()
	y = b.BN2.Forward(b.Conv2.Forward(y))
	if b.Down != nil {
		x = b.Down.Forward(x)
	}
	return y.Add(x).ReLU()
}

// resnet18 trains torchvision's resnet18 with SGD on 8 images of 3×64×64.
func resnet18(n *numbers) (step, error) {
	m := nn.NewSequential(
		nn.NewConv2d(3, 64, 7, nn.Stride(2), nn.Padding(3), nn.NoBias()), nn.NewBatchNorm2d(64), &nn.ReLU{},
		nn.NewMaxPool2d(3, nn.Stride(2), nn.Padding(1)),
		newBasicBlock(64, 64, 1), newBasicBlock(64, 64, 1),
		newBasicBlock(64, 128, 2), newBasicBlock(128, 128, 1),
		newBasicBlock(128, 256, 2), newBasicBlock(256, 256, 1),
		newBasicBlock(256, 512, 2), newBasicBlock(512, 512, 1),
		nn.NewAdaptiveAvgPool2d(1, 1), nn.NewFlatten(1, -1), nn.NewLinear(512, 1000))
	x, y := n.floats(8, 3, 64, 64), n.ints(1000, 8)
	return training(n, m, sgd, func() *tensor.Tensor { return nn.CrossEntropy(m.Forward(x), y) })
}

func sgd(m any) (*optim.Optimizer, error) {
	return optim.NewSGD(nn.Parameters(m), 0.01, optim.Momentum(0.9))
}

// cnn256 trains three convolutions with batch norm on 4 images of 3×256×256.
func cnn256(n *numbers) (step, error) {
	m := nn.NewSequential(
		conv3(3, 16), nn.NewBatchNorm2d(16), &nn.ReLU{}, nn.NewMaxPool2d(2),
		conv3(16, 32), nn.NewBatchNorm2d(32), &nn.ReLU{}, nn.NewMaxPool2d(2),
		conv3(32, 64), nn.NewBatchNorm2d(64), &nn.ReLU{},
		nn.NewAdaptiveAvgPool2d(1, 1), nn.NewFlatten(1, -1), nn.NewLinear(64, 10))
	x, y := n.floats(4, 3, 256, 256), n.ints(10, 4)
	return training(n, m, adam, func() *tensor.Tensor { return nn.CrossEntropy(m.Forward(x), y) })
}
