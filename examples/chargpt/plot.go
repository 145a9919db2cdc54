package main

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// plotLosses draws the loss of each step, and its mean over the steps around, as an SVG.
func plotLosses(path string, losses []float64) error {
	if len(losses) == 0 {
		return nil
	}
	p := plot.New()
	p.Title.Text = "chargpt: loss on Go's source"
	p.X.Label.Text = "step"
	p.Y.Label.Text = "nats a character"
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

// line draws losses, each the mean of those up to reach steps away.
func line(losses []float64, reach int, c color.Color, width vg.Length) (*plotter.Line, error) {
	points := make(plotter.XYs, len(losses))
	for i := range losses {
		from, to := max(0, i-reach), min(len(losses), i+reach+1)
		sum := 0.0
		for _, v := range losses[from:to] {
			sum += v
		}
		points[i] = plotter.XY{X: float64(i + 1), Y: sum / float64(to-from)}
	}
	l, err := plotter.NewLine(points)
	if err == nil {
		l.Color, l.Width = c, width
	}
	return l, err
}
