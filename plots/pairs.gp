# A heat map: how long each pair of nodes exchanges, as a multiple of the fast pairs.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "pairs"
figure_width = 560
figure_height = 480
load "style.gp"
stats table using 1 nooutput
last = STATS_max
stats table using 3 nooutput
slowest = STATS_max
set size ratio -1
set xrange [-0.5:last + 0.5]
set yrange [last + 0.5:-0.5]
set xlabel "node"
set ylabel "node"
set xtics out nomirror
set ytics out nomirror
# Equal pairs are pale: below 1.3 times nothing stands out.
set cbrange [1:(slowest > 1.3 ? slowest : 1.3)]
set cblabel "times the fast pairs"
set palette defined (0 "#f3f6f8", 0.4 "#f2c377", 1 "#d9604c")
unset key
plot table using 1:2:(0.5):(0.5):3 with boxxyerror linecolor palette, \
     (last < 12 ? table : "/dev/null") using 1:2:(sprintf("%.2f", $3)) with labels font ",10"
