# Gradient error of each tensor against its limit, in backward order.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "gradient"
figure_height = 460
load "style.gp"
stats table using 1 name "place" nooutput
stats table using 2 name "error" nooutput
stats table using 4 name "limit" nooutput
least = error_min < limit_min ? error_min : limit_min
largest = error_max > limit_max ? error_max : limit_max
set xrange [0.4:place_max+0.6]
set yrange [(least > 0 ? least/3 : 1e-9):largest*3]
set logscale y
set format y "10^{%L}"
# The ends of the axis are named, whatever order the judge has written.
first = ""; last = ""
stats table index 0 using ($1 == 1 ? (first = strcol(7), $1) : (last = strcol(7), $1)) name "named" nooutput
set xtics (first 1, last place_max) noenhanced
set xlabel "tensors of the network"
set ylabel "relative error"
set bmargin 7.5
set rmargin 6
eval key_below
plot for [i = 1:words(blocks)] table index i-1 using ($1-0.42):4:(0.84):(0) with vectors nohead linewidth 1.8 \
         linetype label_line(word(blocks, i)) linecolor rgb label_colour(word(blocks, i)) notitle, \
     for [i = 1:words(blocks)] table index i-1 using 1:($2 <= $4 ? $2 : NaN) with points \
         pointtype label_point(word(blocks, i)) pointsize 0.65 linecolor rgb label_colour(word(blocks, i)) \
         title word(blocks, i), \
     for [i = 1:words(blocks)] table index i-1 using 1:($2 <= $4 ? NaN : $2) with points pointtype 2 \
         pointsize 1.4 linewidth 2.2 linecolor rgb "#b3261e" notitle, \
     NaN with lines linewidth 1.8 linecolor rgb "#49525c" title "limit", \
     for [i = 1:(strstrt(blocks, "bf16") > 0)] NaN with lines linewidth 1.8 linetype 12 linecolor rgb "#49525c" \
         title "limit, bf16", \
     NaN with points pointtype 2 pointsize 1.2 linewidth 2 linecolor rgb "#b3261e" title "above its limit"
