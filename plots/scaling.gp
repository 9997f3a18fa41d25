# Weak scaling: measured points with intervals, and the ideal line from one rank.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "scaling"
figure_height = 450
load "style.gp"
stats table using 4 name "nodes" nooutput
stats table using 5 name "simulated" nooutput
stats table using 1 name "world" nooutput
stats table using (valid(9) && $9 > $7 ? $9 : $7) name "rate" nooutput
stats table using (valid(8) && $8 > 0 && $8 < $7 ? $8 : $7) name "least" nooutput
set logscale x 2
set logscale y 2
set xrange [world_min*0.8:world_max*1.25]
stats table using 15 name "ideal" nooutput
top = exists("ideal_max") && ideal_max > rate_max ? ideal_max : rate_max
set yrange [least_min*0.7:top*1.3]
# Over fewer than three octaves powers of two are one mark or two: whole steps of one size instead.
range = top - least_min*0.7
step = 10**floor(log10(range))
step = range < 2*step ? step/5 : range < 5*step ? step/2 : step
if (top < least_min*0.7*8) {
    set ytics ()
    do for [i = ceil(least_min*0.7/step):floor(top*1.3/step)] { set ytics add (i*step) }
}
set xtics 2
set format x "%.0f"
set format y "%.4g"
set xlabel "ranks"
set ylabel "images/s, all ranks"
set bmargin 7.5
eval key_below
split_title = nodes_max > 1 ? sprintf("split over %.0f%s nodes", nodes_max, simulated_max > 0 ? " simulated" : "") : ""
one_node(nodes) = nodes == 1 ? 1 : NaN
plot for [level = 0:3] table using 1:($2 == level ? $15 : NaN) with lines dashtype 2 linewidth 1.2 \
         linecolor rgb "#7a8590" notitle, \
     for [level = 0:3] table using 1:($2 == level ? $7*one_node($4) : NaN):8:9 with yerrorlines pointtype 7 \
         pointsize 0.9 linewidth 1.6 linecolor rgb level_colour(level) notitle, \
     for [level = 0:3] table using 1:($2 == level && $4 > 1 ? $7 : NaN):8:9 with yerrorbars pointtype 4 \
         pointsize 1.4 linewidth 1.6 linecolor rgb level_colour(level) notitle, \
     table using 1:($4 == 1 && valid(14) ? $7 : NaN):(sprintf("%.2f", $14)) with labels offset 2.2,0.7 \
         noenhanced notitle, \
     NaN with lines dashtype 2 linecolor rgb "#7a8590" title "ideal: ranks x one rank", \
     NaN with points pointtype 7 linecolor rgb "#1c2024" title "measured, with efficiency", \
     NaN with points pointtype 4 linecolor rgb "#1c2024" title split_title
