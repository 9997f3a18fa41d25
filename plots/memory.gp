# Memory of one rank by opt level: what it is made of, and the peak the system saw.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "memory"
load "style.gp"
stats table using 3 name "peak" nooutput
array kind_rgb[6] = [0x332288, 0x88CCEE, 0x44AA99, 0xDDCC77, 0xCC6677, 0xBBBBBB]
kinds = "parameters masters moments gradients activations workspace"
known(x) = x == x ? x : 0
sum_to(i) = (i < 1 ? 0 : known(column(4))) + (i < 2 ? 0 : known(column(5))) + (i < 3 ? 0 : known(column(6))) \
    + (i < 4 ? 0 : known(column(7))) + (i < 5 ? 0 : known(column(8))) + (i < 6 ? 0 : known(column(9)))
set xrange [-0.6:peak_records-0.4]
set yrange [0:peak_max*1.15]
set ylabel "MB, largest of any rank"
set key outside right top
stats table using 8 name "parts" nooutput
records = exists("parts_records") && parts_records > 0
if (records) {
    plot for [i = 1:6] table using 1:(sum_to(i-1)):($1-0.3):($1+0.3):(sum_to(i-1)):(sum_to(i)) \
             with boxxyerror fillcolor rgb kind_rgb[i] title word(kinds, i), \
         table using 1:3:(0.3):xticlabels(10) with xerrorbars pointtype -1 linewidth 3 linecolor rgb "#1c2024" \
             title "peak resident", \
         table using 1:3:(sprintf("%.0f", $3)) with labels offset 0,0.8 noenhanced notitle
} else {
    unset key
    plot table using 1:3:(0.62):(level_colour($2)):xticlabels(10) with boxes linecolor rgb variable, \
         table using 1:3:(sprintf("%.0f", $3)) with labels offset 0,0.8 noenhanced
}
