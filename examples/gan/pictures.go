package main

import (
	"image"
	"image/color"
	"image/png"
	"os"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/mnist/digits"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// readDigits returns the digits as pictures (N, 1, size, size) with values in [-1, 1].
func readDigits() (*data.TensorDataset, error) {
	all, err := digits.Read()
	if err != nil {
		return nil, err
	}
	var set *data.TensorDataset
	err = tensor.WithScope(func() (err error) {
		small := tensor.FromSlice(all.Pixels, []int{all.Len(), 1, all.Height, all.Width}).To(tensor.Float32)
		scaled := small.Mul(2 / float64(all.White)).Sub(1)
		set, err = data.NewTensorDataset(nn.Interpolate(scaled, nn.OutputSize(size, size), nn.Algorithm("bilinear")))
		return err
	})
	return set, err
}

func newLoader(set *data.TensorDataset, o options) (*data.Loader, error) {
	return data.NewLoader(set, data.BatchSize(o.Batch), data.Shuffle(true), data.Seed(o.Seed), data.DropLast(true))
}

// draw generates n pictures, in rows of per, with a border of a pixel around each.
func (g *gan) draw(n, per int) (*image.Gray, error) {
	nn.Eval(g.Generator)
	defer nn.Train(g.Generator)
	var pixels []float32
	err := tensor.WithScope(func() error {
		return autograd.NoGrad(func() (err error) {
			pixels, err = tensor.Data[float32](g.Generator.Forward(tensor.Randn([]int{n, noise, 1, 1})))
			return err
		})
	})
	const cell = size + 1
	picture := image.NewGray(image.Rect(0, 0, per*cell+1, (n+per-1)/per*cell+1))
	for i, p := range pixels {
		k, y, x := i/(size*size), i/size%size, i%size
		picture.SetGray(k%per*cell+1+x, k/per*cell+1+y, color.Gray{uint8(max(0, min(255, (p+1)*127.5)))})
	}
	return picture, err
}

// savePNG writes a picture, enlarged.
func savePNG(path string, picture *image.Gray, times int) (err error) {
	b := picture.Bounds()
	large := image.NewGray(image.Rect(0, 0, b.Dx()*times, b.Dy()*times))
	for y := range b.Dy() * times {
		for x := range b.Dx() * times {
			large.SetGray(x, y, picture.GrayAt(x/times, y/times))
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	return png.Encode(f, large)
}
