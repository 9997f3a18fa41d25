# DDP against other ways to use the same cores: horizontal bars with the 95 % interval, the median
# written behind.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "ways"
load "style.gp"
stats table using (valid(8) && $8 > $6 ? $8 : $6) name "rate" nooutput
set xrange [0:rate_max*1.18]
set yrange [-rate_records+0.4:0.6]
set xlabel "images/s, the same images a step and the same cores"
unset grid
set grid xtics linecolor rgb "#dde2e7" linetype 1 linewidth 0.6
unset key
# DDP, one device, DataParallel, stages, DDP with other updates
array way_rgb[9] = [0x332288, 0x332288, 0xBBBBBB, 0xCC6677, 0x44AA99, 0x44AA99, 0x88CCEE, 0x88CCEE, 0x88CCEE]
colour(way) = way_rgb[int(way)]
checked(yes) = yes > 0 ? 1 : NaN
plot table using (0):(-$1):(0):($6*checked($11)):(-$1-0.31):(-$1+0.31):(colour($2)):yticlabels(12) \
         with boxxyerror linecolor rgb variable, \
     table using (0):(-$1):(0):($11 > 0 ? NaN : $6):(-$1-0.31):(-$1+0.31):(colour($2)) \
         with boxxyerror linecolor rgb variable linewidth 1.6 fill empty border, \
     table using 7:(-$1):($8-$7):(0) with vectors heads size graph 0.008,90 linewidth 1.4 linecolor rgb "#1c2024", \
     table using (valid(8) ? $8 : $6):(-$1):($11 > 0 ? sprintf(" %.4g", $6) : sprintf(" (%.4g)", $6)) \
         with labels left offset 0.4,0 noenhanced
