package main

import (
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// plotLosses draws the loss of each step and a moving average as an SVG.
func plotLosses(path string, losses []float64) error {
	if len(losses) == 0 {
		return nil
	}
	p := plot.New()
	p.Title.Text = "chargpt: loss on Go's source"
	p.X.Label.Text = "step"
	p.Y.Label.Text = "nats per character"
	p.Add(plotter.NewGrid())
	each, err := line(losses, 0, color.Gray{190}, vg.Points(0.5))
	if err != nil {
		return err
	}
	mean, err := line(losses, max(1, len(losses)/50), color.RGBA{0, 90, 180, 255}, vg.Points(1.5))
	if err != nil {
		return err
	}
	p.Add(each, mean)
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, path)
}

// line draws the moving average of losses over reach steps in both directions. It omits NaN and infinities.
func line(losses []float64, reach int, c color.Color, width vg.Length) (*plotter.Line, error) {
	sums, counts := make([]float64, len(losses)+1), make([]int, len(losses)+1)
	for i, v := range losses {
		sums[i+1], counts[i+1] = sums[i], counts[i]
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			sums[i+1], counts[i+1] = sums[i]+v, counts[i]+1
		}
	}
	points := make(plotter.XYs, 0, len(losses))
	for i := range losses {
		from, to := max(0, i-reach), min(len(losses), i+reach+1)
		if n := counts[to] - counts[from]; n > 0 {
			points = append(points, plotter.XY{X: float64(i + 1), Y: (sums[to] - sums[from]) / float64(n)})
		}
	}
	if len(points) == 0 {
		points = plotter.XYs{{}}
	}
	l, err := plotter.NewLine(points)
	if err == nil {
		l.Color, l.Width = c, width
	}
	return l, err
}
