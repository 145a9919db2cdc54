package main

import "github.com/linstock-ml/linstock/tensor"

const (
	width, height = 5, 6
	actions       = 3 // left, stay, right
)

// game is a ball that falls through a grid and a paddle at the bottom.
type game struct{ x, y, paddle int }

// newGame drops a ball from a random column.
func newGame() (*game, error) {
	x, err := tensor.Item[int64](tensor.RandInt(0, width, nil))
	return &game{x: int(x), paddle: width / 2}, err
}

// state returns the observation: the positions of ball and paddle, scaled to [0, 1].
func (g *game) state() []float32 {
	return []float32{float32(g.x) / width, float32(g.y) / height, float32(g.paddle) / width}
}

// step moves the paddle and then the ball. The last move is rewarded: 1 for a catch, -1 for a miss.
func (g *game) step(action int) (reward float32, done bool) {
	g.paddle = min(max(g.paddle+action-1, 0), width-1)
	g.y++
	switch {
	case g.y < height-1:
		return 0, false
	case g.x == g.paddle:
		return 1, true
	}
	return -1, true
}
