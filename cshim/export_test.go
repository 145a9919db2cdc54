package cshim

// LoadAgain is Load without its first look, and says whether what runs once after loading has run.
func LoadAgain() (ran bool, err error) {
	before := onLoad
	defer func() { onLoad = before }()
	onLoad = func() { ran = true }
	err = load()
	return ran, err
}
