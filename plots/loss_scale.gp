# Loss scale over time, a panel per job: its steps would hide each other in one.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "scale"
panels = words(blocks)
figure_height = 130 + 130*panels
load "style.gp"
array rgb[panels]
array low[panels]
array high[panels]
array last[panels]
do for [i = 1:panels] { # before the axis is logarithmic, or the statistics would be
    stats table index i-1 using 4 name "rung" nooutput
    stats table index i-1 using 2 name "scale" nooutput
    rgb[i] = level_colour(rung_min)
    stats table index i-1 using 1 name "step" nooutput
    last[i] = step_max
    low[i] = scale_min/4
    high[i] = scale_max*4
}
unset title
set multiplot layout panels,1 title figure_title font title_font noenhanced \
    margins 0.12,0.97,75.0/figure_height,1-60.0/figure_height spacing 0,0.12
set logscale y 2
set format y "2^{%L}"
set ylabel "loss scale"
set ytics 4
unset key
do for [i = 1:panels] {
    set yrange [low[i]:high[i]]
    set label 1 word(blocks, i) at graph 0.99,0.88 right noenhanced
    # Jobs of unlike length: every panel has its own steps, whole ones.
    set xrange [0.5:last[i]+0.5]
    set format x "%.0f"
    if (last[i] <= 16) { set xtics 1 } else { set xtics autofreq }
    if (i == panels) { set xlabel "step" }
    plot table index i-1 using 1:2 with steps linewidth 2 linecolor rgb rgb[i], \
         table index i-1 using 1:($3 > 0 ? $2 : NaN) with points pointtype 2 pointsize 1 linewidth 1.8 \
             linecolor rgb "#b3261e"
}
unset multiplot
