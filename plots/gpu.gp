# Power, clock and temperature of every GPU while jobs ran; throttled spans are marked.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "gpu"
figure_height = 560
load "style.gp"
# Tol's bright palette; more than seven GPUs share colours, and differ by their dashes.
array gpu_rgb[7] = [0x4477AA, 0xEE6677, 0x228833, 0xCCBB44, 0x66CCEE, 0xAA3377, 0xBBBBBB]
colour(i) = gpu_rgb[(i-1) % 7 + 1]
dash(i) = (i-1) / 7 % 4 + 1
count = words(blocks)
set lmargin 9
set multiplot layout 3,1
set format x ""
set bmargin 0.6
set key off
set ylabel "W"
set yrange [0:*]
plot for [i = 1:count] table index i-1 using 2:3 with lines linewidth 1.6 dashtype dash(i) linecolor rgb colour(i) \
    title word(blocks, i)
unset title
set tmargin 0.6
set ylabel "SM clock, MHz"
set ytics 500
plot for [i = 1:count] table index i-1 using 2:6 with lines linewidth 1.6 dashtype dash(i) linecolor rgb colour(i) \
    notitle, \
    for [i = 1:count] table index i-1 using ($8 > 0 ? $2 : NaN):6 with points pointtype 7 pointsize 0.7 \
    linecolor rgb colour(i) notitle
set ylabel "{/Symbol \260}C"
set yrange [*:*]
set ytics autofreq
set format x "%g"
set xlabel "s since the first reading"
set bmargin 5.5
set key at screen 0.5,screen 0.01 bottom center horizontal maxrows 2 width -1
plot for [i = 1:count] table index i-1 using 2:4 with lines linewidth 1.6 dashtype dash(i) linecolor rgb colour(i) \
    title word(blocks, i)
unset multiplot
