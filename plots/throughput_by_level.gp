# Throughput by opt level: bars with the 95 % interval, the median written above.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "level"
load "style.gp"
stats table using (valid(9) && $9 > $7 ? $9 : $7) name "rate" nooutput
set yrange [0:rate_max*1.15]
set xrange [-0.6:rate_records-0.4]
set ylabel "images/s, all ranks"
set boxwidth 0.62
unset key
bar(checked) = checked > 0 ? 1 : NaN
plot table using 1:($7*bar($16)):(0.62):(level_colour($2)):xticlabels(19) with boxes linecolor rgb variable, \
     table using 1:($16 > 0 ? NaN : $7):(0.62):(level_colour($2)) with boxes linecolor rgb variable \
         linewidth 1.6 fill empty border, \
     table using 1:8:(0):($9-$8) with vectors heads size graph 0.008,90 linewidth 1.4 linecolor rgb "#1c2024", \
     table using 1:(valid(9) ? $9 : $7):($16 > 0 ? sprintf("%.4g", $7) : sprintf("(%.4g)", $7)) \
         with labels offset 0,0.8 noenhanced
