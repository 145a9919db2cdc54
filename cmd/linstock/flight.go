package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/flight"
)

func newFlight() *cobra.Command {
	return &cobra.Command{
		Use:   "flight DIR",
		Short: "Say which process of a job is late in which collective",
		Long: `Flight reads what the flight recorders of all ranks of a job have written to DIR, also
while the job runs or after its processes were killed, and says which ranks are late or
have called a different collective, with the lines of the program. If DIR has several
runs, it reads the last one.

A job records if the environment variable LINSTOCK_FLIGHT names a directory, or with the
option dist.FlightRecorder. If its machines share no directory, copy all files into one.`,
		Example: `  LINSTOCK_FLIGHT=/tmp/flight torchrun --nproc-per-node 4 --no-python ./train
  linstock flight /tmp/flight`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := flight.Read(args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "%s\n%s\n", run.Dir, flightTable(run))
			for _, text := range run.Explain() {
				fmt.Fprintln(out, text)
			}
			return nil
		},
	}
}

// flightTable returns a table of the last call of each rank in each group.
func flightTable(run *flight.Run) string {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.AppendHeader(table.Row{"Group", "Rank", "of all", "Last call", "", "State", "Begun", "Behind", "Line"})
	var right []table.ColumnConfig
	for _, i := range []int{2, 3, 4, 8} {
		right = append(right, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	for _, g := range run.Groups() {
		for _, m := range g.Members {
			c := m.Last
			number := ""
			if c.Collective != 0 {
				number = fmt.Sprint(c.Collective)
			}
			t.AppendRow(table.Row{g.Name, m.Rank, m.World, number, c.Call, c.State(), time.Unix(0, c.Begun).Format(flight.Clock),
				m.Behind.Round(10 * time.Microsecond), c.Line})
		}
	}
	return t.Render()
}
