package progress

import (
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Curve is a figure of each step.
type Curve struct {
	Name   string // in the legend; none if empty
	Values []float64
}

// colors has for each curve the color of the average and the one of the single values.
var colors = [][2]color.Color{
	{color.RGBA{0, 90, 180, 255}, color.Gray{190}},
	{color.RGBA{200, 80, 0, 255}, color.RGBA{235, 205, 180, 255}},
	{color.RGBA{0, 130, 70, 255}, color.RGBA{185, 220, 200, 255}},
}

// Plot draws the curves and a moving average of each. The suffix of path is the format: .svg, .png or .pdf. It writes no
// file if there are no values.
func Plot(path, title, yLabel string, curves ...Curve) error {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "step"
	p.Y.Label.Text = yLabel
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	empty := true
	for i, c := range curves {
		if len(c.Values) == 0 {
			continue
		}
		empty = false
		shades := colors[i%len(colors)]
		each, err := line(c.Values, 0, shades[1], vg.Points(0.5))
		if err != nil {
			return err
		}
		mean, err := line(c.Values, max(1, len(c.Values)/50), shades[0], vg.Points(1.5))
		if err != nil {
			return err
		}
		p.Add(each, mean)
		if c.Name != "" {
			p.Legend.Add(c.Name, mean)
		}
	}
	if empty {
		return nil
	}
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, path)
}

// line draws the moving average of values over reach steps in both directions. It omits NaN and infinities.
func line(values []float64, reach int, c color.Color, width vg.Length) (*plotter.Line, error) {
	sums, counts := make([]float64, len(values)+1), make([]int, len(values)+1)
	for i, v := range values {
		sums[i+1], counts[i+1] = sums[i], counts[i]
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			sums[i+1], counts[i+1] = sums[i]+v, counts[i]+1
		}
	}
	points := make(plotter.XYs, 0, len(values))
	for i := range values {
		from, to := max(0, i-reach), min(len(values), i+reach+1)
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
