; gram tile 4x16 (2 vectors of 8) blocks 64x768x512 [rows x0, columns x1] f32

define void @km(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %p1 = getelementptr i64, ptr %integers, i64 0
  %v2 = load i64, ptr %p1, align 8
  %p3 = getelementptr i64, ptr %integers, i64 1
  %v4 = load i64, ptr %p3, align 8
  %p5 = getelementptr i64, ptr %integers, i64 2
  %v6 = load i64, ptr %p5, align 8
  %p7 = getelementptr i64, ptr %integers, i64 3
  %v8 = load i64, ptr %p7, align 8
  %p9 = getelementptr i64, ptr %integers, i64 4
  %v10 = load i64, ptr %p9, align 8
  %p11 = getelementptr i64, ptr %integers, i64 5
  %v12 = load i64, ptr %p11, align 8
  %p13 = getelementptr i64, ptr %integers, i64 6
  %v14 = load i64, ptr %p13, align 8
  %p15 = getelementptr i64, ptr %integers, i64 7
  %v16 = load i64, ptr %p15, align 8
  %p17 = getelementptr i64, ptr %integers, i64 8
  %v18 = load i64, ptr %p17, align 8
  %p19 = getelementptr i64, ptr %integers, i64 9
  %v20 = load i64, ptr %p19, align 8
  %p21 = getelementptr i64, ptr %integers, i64 10
  %v22 = load i64, ptr %p21, align 8
  %p23 = getelementptr i64, ptr %integers, i64 11
  %v24 = load i64, ptr %p23, align 8
  %p25 = getelementptr i64, ptr %integers, i64 13
  %v26 = load i64, ptr %p25, align 8
  %p27 = getelementptr i64, ptr %integers, i64 15
  %v28 = load i64, ptr %p27, align 8
  %p29 = getelementptr i64, ptr %integers, i64 16
  %v30 = load i64, ptr %p29, align 8
  %p31 = getelementptr i64, ptr %integers, i64 17
  %v32 = load i64, ptr %p31, align 8
  %p33 = getelementptr i64, ptr %integers, i64 19
  %v34 = load i64, ptr %p33, align 8
  %p35 = getelementptr i64, ptr %integers, i64 20
  %v36 = load i64, ptr %p35, align 8
  %p37 = getelementptr i64, ptr %integers, i64 22
  %v38 = load i64, ptr %p37, align 8
  %p39 = getelementptr i64, ptr %integers, i64 23
  %v40 = load i64, ptr %p39, align 8
  %p41 = getelementptr i64, ptr %integers, i64 24
  %v42 = load i64, ptr %p41, align 8
  %p43 = getelementptr i64, ptr %integers, i64 25
  %v44 = load i64, ptr %p43, align 8
  %p45 = getelementptr i64, ptr %integers, i64 26
  %v46 = load i64, ptr %p45, align 8
  %v47 = add nsw i64 %v8, 3
  %v48 = sdiv i64 %v47, 4
  %v49 = mul nsw i64 %v48, 4
  %v50 = call i64 @llvm.smin.i64(i64 64, i64 %v49)
  %v51 = add nsw i64 %v10, 15
  %v52 = sdiv i64 %v51, 16
  %v53 = mul nsw i64 %v52, 16
  %v54 = call i64 @llvm.smin.i64(i64 768, i64 %v53)
  %v55 = call i64 @llvm.smax.i64(i64 1, i64 %v12)
  %v56 = call i64 @llvm.smin.i64(i64 512, i64 %v55)
  %v57 = ptrtoint ptr %scratch to i64
  %v58 = add nsw i64 %v57, 63
  %v59 = and i64 %v58, -64
  %v60 = inttoptr i64 %v59 to ptr
  %v61 = mul nsw i64 %v56, 1
  %v62 = mul nsw i64 %v50, 4
  %v63 = mul nsw i64 %v61, %v62
  %v64 = add nsw i64 %v63, 63
  %v65 = and i64 %v64, -64
  %p66 = getelementptr i8, ptr %v60, i64 %v65
  %v67 = mul nsw i64 %v56, 1
  %v68 = mul nsw i64 %v54, 4
  %v69 = mul nsw i64 %v67, %v68
  %v70 = add nsw i64 %v69, 63
  %v71 = and i64 %v70, -64
  %p72 = getelementptr i8, ptr %p66, i64 %v71
  %v73 = sdiv i64 %v54, 16
  %p74 = getelementptr ptr, ptr %pointers, i64 0
  %v75 = load ptr, ptr %p74, align 8
  %p76 = getelementptr ptr, ptr %pointers, i64 1
  %v77 = load ptr, ptr %p76, align 8
  %p78 = getelementptr ptr, ptr %pointers, i64 2
  %v79 = load ptr, ptr %p78, align 8
  %v80 = add nsw i64 %v8, 15
  %v81 = sdiv i64 %v80, 16
  br label %head82
head82:
  %item85 = phi i64 [ %begin, %entry ], [ %v221, %done133 ]
  %v86 = icmp slt i64 %item85, %end
  br i1 %v86, label %body83, label %done84
body83:
  %v87 = sdiv i64 %item85, %v81
  %v88 = srem i64 %item85, %v81
  %v89 = sub nsw i64 %v81, %v88
  %v90 = sub nsw i64 %end, %item85
  %v91 = call i64 @llvm.smin.i64(i64 %v89, i64 %v90)
  %v92 = mul nsw i64 %v88, 16
  %v93 = add nsw i64 %v88, %v91
  %v94 = mul nsw i64 %v93, 16
  %v95 = call i64 @llvm.smin.i64(i64 %v8, i64 %v94)
  %v96 = srem i64 %v87, %v16
  %v97 = sdiv i64 %v87, %v16
  %v98 = srem i64 %v97, %v6
  %v99 = sdiv i64 %v97, %v6
  %v100 = srem i64 %v99, %v4
  %v101 = sdiv i64 %v99, %v4
  %v102 = mul nsw i64 %v101, %v18
  %v103 = add nsw i64 0, %v102
  %v104 = mul nsw i64 %v100, %v20
  %v105 = add nsw i64 %v103, %v104
  %v106 = mul nsw i64 %v98, %v22
  %v107 = add nsw i64 %v105, %v106
  %p108 = getelementptr float, ptr %v75, i64 %v107
  %v109 = mul nsw i64 %v101, %v28
  %v110 = add nsw i64 0, %v109
  %v111 = mul nsw i64 %v100, %v30
  %v112 = add nsw i64 %v110, %v111
  %v113 = mul nsw i64 %v98, %v32
  %v114 = add nsw i64 %v112, %v113
  %p115 = getelementptr float, ptr %v77, i64 %v114
  %v116 = mul nsw i64 %v101, %v38
  %v117 = add nsw i64 0, %v116
  %v118 = mul nsw i64 %v100, %v40
  %v119 = add nsw i64 %v117, %v118
  %v120 = mul nsw i64 %v98, %v42
  %v121 = add nsw i64 %v119, %v120
  %p122 = getelementptr float, ptr %v79, i64 %v121
  %v123 = sub nsw i64 %v12, 0
  %v124 = sub nsw i64 %v14, 0
  %v125 = mul nsw i64 %v123, %v124
  %v126 = icmp sle i64 %v125, 0
  %v127 = add nsw i64 %v123, 511
  %v128 = sdiv i64 %v127, 512
  %v129 = call i64 @llvm.smax.i64(i64 1, i64 %v128)
  %v130 = icmp sgt i64 %v10, 768
  br label %head131
head131:
  %i134 = phi i64 [ %v92, %body83 ], [ %v220, %done140 ]
  %v135 = icmp slt i64 %i134, %v95
  br i1 %v135, label %body132, label %done133
body132:
  %v136 = sub nsw i64 %v95, %i134
  %v137 = call i64 @llvm.smin.i64(i64 64, i64 %v136)
  br label %head138
head138:
  %i141 = phi i64 [ 0, %body132 ], [ %v219, %done150 ]
  %v142 = icmp slt i64 %i141, %v10
  br i1 %v142, label %body139, label %done140
body139:
  %v143 = sub nsw i64 %v10, %i141
  %v144 = call i64 @llvm.smin.i64(i64 768, i64 %v143)
  %v145 = icmp eq i64 %i141, 0
  %v146 = icmp eq i64 %i134, %v92
  %v147 = or i1 %v130, %v146
  br label %head148
head148:
  %i151 = phi i64 [ 0, %body139 ], [ %v218, %done187 ]
  %v152 = icmp slt i64 %i151, %v129
  br i1 %v152, label %body149, label %done150
body149:
  %v153 = mul nsw i64 %i151, 512
  %v154 = add nsw i64 0, %v153
  %v155 = sub nsw i64 %v12, %v154
  %v156 = call i64 @llvm.smin.i64(i64 512, i64 %v155)
  %v157 = select i1 %v126, i64 0, i64 %v156
  %v158 = icmp ne i64 %v129, 1
  %v159 = icmp ne i64 %v129, 1
  %v160 = or i1 %v145, %v158
  br i1 %v160, label %yes161, label %done162
yes161:
  %v163 = mul nsw i64 %v154, %v26
  %v164 = add nsw i64 0, %v163
  %v165 = mul nsw i64 %i134, %v24
  %v166 = add nsw i64 %v164, %v165
  %p167 = getelementptr float, ptr %p108, i64 %v166
  %v168 = xor i1 %v126, true
  br i1 %v168, label %yes169, label %done170
yes169:
  call fastcc void @km_pack_f32_4(ptr %v60, ptr %p167, i64 %v24, i64 %v26, i64 %v137, i64 %v157)
  br label %done170
done170:
  br label %done162
done162:
  %v171 = or i1 %v147, %v158
  br i1 %v171, label %yes172, label %done173
yes172:
  %v174 = mul nsw i64 %v154, %v36
  %v175 = add nsw i64 0, %v174
  %v176 = mul nsw i64 %i141, %v34
  %v177 = add nsw i64 %v175, %v176
  %p178 = getelementptr float, ptr %p115, i64 %v177
  %v179 = xor i1 %v126, true
  br i1 %v179, label %yes180, label %done181
yes180:
  call fastcc void @km_pack_f32_16(ptr %p66, ptr %p178, i64 %v34, i64 %v36, i64 %v144, i64 %v157)
  br label %done181
done181:
  br label %done173
done173:
  %v182 = icmp eq i64 %i151, 0
  %v183 = add nsw i64 %i151, 1
  %v184 = icmp eq i64 %v183, %v129
  br label %head185
head185:
  %i188 = phi i64 [ 0, %done173 ], [ %v217, %done193 ]
  %v189 = icmp slt i64 %i188, %v144
  br i1 %v189, label %body186, label %done187
body186:
  %v190 = add nsw i64 %i141, %i188
  br label %head191
head191:
  %i194 = phi i64 [ 0, %body186 ], [ %v216, %body192 ]
  %v195 = icmp slt i64 %i194, %v137
  br i1 %v195, label %body192, label %done193
body192:
  %v196 = add nsw i64 %i134, %i194
  %v197 = mul nsw i64 %i194, %v157
  %p198 = getelementptr float, ptr %v60, i64 %v197
  %v199 = mul nsw i64 %i188, %v157
  %p200 = getelementptr float, ptr %p66, i64 %v199
  %v201 = mul nsw i64 %v196, %v44
  %v202 = add nsw i64 0, %v201
  %v203 = mul nsw i64 %v190, %v46
  %v204 = add nsw i64 %v202, %v203
  %p205 = getelementptr float, ptr %p122, i64 %v204
  %v206 = sub nsw i64 %v137, %i194
  %v207 = call i64 @llvm.smin.i64(i64 4, i64 %v206)
  %v208 = sub nsw i64 %v144, %i188
  %v209 = call i64 @llvm.smin.i64(i64 16, i64 %v208)
  %v210 = sdiv i64 %i194, 4
  %v211 = mul nsw i64 %v210, %v73
  %v212 = sdiv i64 %i188, 16
  %v213 = add nsw i64 %v211, %v212
  %v214 = mul nsw i64 %v213, 256
  %p215 = getelementptr i8, ptr %p72, i64 %v214
  call fastcc void @km_tile(ptr %integers, ptr %numbers, ptr %p198, ptr %p200, ptr %p205, ptr %p72, ptr %p215, i64 %v157, i64 %v154, i64 %v207, i64 %v209, i64 -4, i1 %v182, i1 %v184)
  %v216 = add nsw i64 %i194, 4
  br label %head191
done193:
  %v217 = add nsw i64 %i188, 16
  br label %head185
done187:
  %v218 = add nsw i64 %i151, 1
  br label %head148
done150:
  %v219 = add nsw i64 %i141, 768
  br label %head138
done140:
  %v220 = add nsw i64 %i134, 64
  br label %head131
done133:
  %v221 = add nsw i64 %item85, %v91
  br label %head82
done84:
  ret void
}

define internal fastcc void @km_tile(ptr %integers, ptr %numbers, ptr %x_x0, ptr %x_x1, ptr %out_0, ptr %cells, ptr %state, i64 %depth, i64 %position, i64 %rows, i64 %columns, i64 %skew, i1 %first, i1 %last) noinline {
entry:
  %room158 = alloca float, i64 64, align 64
  %p1 = getelementptr double, ptr %numbers, i64 0
  %v2 = load double, ptr %p1, align 8
  %v3 = fptrunc double %v2 to float
  br label %head4
head4:
  %k7 = phi i64 [ 0, %entry ], [ %v73, %body5 ]
  %s8 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v29, %body5 ]
  %s9 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v36, %body5 ]
  %s10 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v45, %body5 ]
  %s11 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v48, %body5 ]
  %s12 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v57, %body5 ]
  %s13 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v60, %body5 ]
  %s14 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v69, %body5 ]
  %s15 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v72, %body5 ]
  %v16 = icmp slt i64 %k7, %depth
  br i1 %v16, label %body5, label %done6
body5:
  %v17 = mul nsw i64 %k7, 4
  %v18 = add nsw i64 %v17, 0
  %p19 = getelementptr float, ptr %x_x0, i64 %v18
  %v20 = load float, ptr %p19, align 4
  %v21 = mul nsw i64 %k7, 16
  %v22 = add nsw i64 %v21, 0
  %p23 = getelementptr float, ptr %x_x1, i64 %v22
  %v24 = load <8 x float>, ptr %p23, align 32
  %v25 = insertelement <8 x float> poison, float %v20, i64 0
  %v26 = shufflevector <8 x float> %v25, <8 x float> poison, <8 x i32> zeroinitializer
  %v27 = fsub contract <8 x float> %v26, %v24
  %v28 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v27)
  %v29 = fadd contract <8 x float> %s8, %v28
  %v30 = mul nsw i64 %k7, 16
  %v31 = add nsw i64 %v30, 8
  %p32 = getelementptr float, ptr %x_x1, i64 %v31
  %v33 = load <8 x float>, ptr %p32, align 32
  %v34 = fsub contract <8 x float> %v26, %v33
  %v35 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v34)
  %v36 = fadd contract <8 x float> %s9, %v35
  %v37 = mul nsw i64 %k7, 4
  %v38 = add nsw i64 %v37, 1
  %p39 = getelementptr float, ptr %x_x0, i64 %v38
  %v40 = load float, ptr %p39, align 4
  %v41 = insertelement <8 x float> poison, float %v40, i64 0
  %v42 = shufflevector <8 x float> %v41, <8 x float> poison, <8 x i32> zeroinitializer
  %v43 = fsub contract <8 x float> %v42, %v24
  %v44 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v43)
  %v45 = fadd contract <8 x float> %s10, %v44
  %v46 = fsub contract <8 x float> %v42, %v33
  %v47 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v46)
  %v48 = fadd contract <8 x float> %s11, %v47
  %v49 = mul nsw i64 %k7, 4
  %v50 = add nsw i64 %v49, 2
  %p51 = getelementptr float, ptr %x_x0, i64 %v50
  %v52 = load float, ptr %p51, align 4
  %v53 = insertelement <8 x float> poison, float %v52, i64 0
  %v54 = shufflevector <8 x float> %v53, <8 x float> poison, <8 x i32> zeroinitializer
  %v55 = fsub contract <8 x float> %v54, %v24
  %v56 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v55)
  %v57 = fadd contract <8 x float> %s12, %v56
  %v58 = fsub contract <8 x float> %v54, %v33
  %v59 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v58)
  %v60 = fadd contract <8 x float> %s13, %v59
  %v61 = mul nsw i64 %k7, 4
  %v62 = add nsw i64 %v61, 3
  %p63 = getelementptr float, ptr %x_x0, i64 %v62
  %v64 = load float, ptr %p63, align 4
  %v65 = insertelement <8 x float> poison, float %v64, i64 0
  %v66 = shufflevector <8 x float> %v65, <8 x float> poison, <8 x i32> zeroinitializer
  %v67 = fsub contract <8 x float> %v66, %v24
  %v68 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v67)
  %v69 = fadd contract <8 x float> %s14, %v68
  %v70 = fsub contract <8 x float> %v66, %v33
  %v71 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v70)
  %v72 = fadd contract <8 x float> %s15, %v71
  %v73 = add nsw i64 %k7, 1
  br label %head4, !llvm.loop !0
done6:
  br i1 %first, label %ready75, label %join74
join74:
  %p76 = getelementptr i8, ptr %state, i64 0
  %v77 = load <8 x float>, ptr %p76, align 4
  %p78 = getelementptr i8, ptr %state, i64 32
  %v79 = load <8 x float>, ptr %p78, align 4
  %p80 = getelementptr i8, ptr %state, i64 64
  %v81 = load <8 x float>, ptr %p80, align 4
  %p82 = getelementptr i8, ptr %state, i64 96
  %v83 = load <8 x float>, ptr %p82, align 4
  %p84 = getelementptr i8, ptr %state, i64 128
  %v85 = load <8 x float>, ptr %p84, align 4
  %p86 = getelementptr i8, ptr %state, i64 160
  %v87 = load <8 x float>, ptr %p86, align 4
  %p88 = getelementptr i8, ptr %state, i64 192
  %v89 = load <8 x float>, ptr %p88, align 4
  %p90 = getelementptr i8, ptr %state, i64 224
  %v91 = load <8 x float>, ptr %p90, align 4
  %v92 = fadd contract <8 x float> %v77, %s8
  %v93 = fadd contract <8 x float> %v79, %s9
  %v94 = fadd contract <8 x float> %v81, %s10
  %v95 = fadd contract <8 x float> %v83, %s11
  %v96 = fadd contract <8 x float> %v85, %s12
  %v97 = fadd contract <8 x float> %v87, %s13
  %v98 = fadd contract <8 x float> %v89, %s14
  %v99 = fadd contract <8 x float> %v91, %s15
  br label %ready75
ready75:
  %v100 = phi <8 x float> [ %s8, %done6 ], [ %v92, %join74 ]
  %v101 = phi <8 x float> [ %s9, %done6 ], [ %v93, %join74 ]
  %v102 = phi <8 x float> [ %s10, %done6 ], [ %v94, %join74 ]
  %v103 = phi <8 x float> [ %s11, %done6 ], [ %v95, %join74 ]
  %v104 = phi <8 x float> [ %s12, %done6 ], [ %v96, %join74 ]
  %v105 = phi <8 x float> [ %s13, %done6 ], [ %v97, %join74 ]
  %v106 = phi <8 x float> [ %s14, %done6 ], [ %v98, %join74 ]
  %v107 = phi <8 x float> [ %s15, %done6 ], [ %v99, %join74 ]
  br i1 %last, label %finish109, label %keep108
keep108:
  %p110 = getelementptr i8, ptr %state, i64 0
  store <8 x float> %v100, ptr %p110, align 4
  %p111 = getelementptr i8, ptr %state, i64 32
  store <8 x float> %v101, ptr %p111, align 4
  %p112 = getelementptr i8, ptr %state, i64 64
  store <8 x float> %v102, ptr %p112, align 4
  %p113 = getelementptr i8, ptr %state, i64 96
  store <8 x float> %v103, ptr %p113, align 4
  %p114 = getelementptr i8, ptr %state, i64 128
  store <8 x float> %v104, ptr %p114, align 4
  %p115 = getelementptr i8, ptr %state, i64 160
  store <8 x float> %v105, ptr %p115, align 4
  %p116 = getelementptr i8, ptr %state, i64 192
  store <8 x float> %v106, ptr %p116, align 4
  %p117 = getelementptr i8, ptr %state, i64 224
  store <8 x float> %v107, ptr %p117, align 4
  ret void
finish109:
  %p118 = getelementptr i64, ptr %integers, i64 25
  %v119 = load i64, ptr %p118, align 8
  %p120 = getelementptr i64, ptr %integers, i64 26
  %v121 = load i64, ptr %p120, align 8
  %v122 = icmp eq i64 %columns, 16
  %v123 = icmp eq i64 %v121, 1
  %v124 = and i1 %v122, %v123
  %v125 = icmp sle i64 %skew, -3
  %v126 = and i1 %v124, %v125
  br i1 %v126, label %whole127, label %other128
whole127:
  %v130 = icmp sgt i64 %rows, 0
  br i1 %v130, label %yes131, label %done132
yes131:
  %v133 = mul nsw i64 %v119, 0
  %p134 = getelementptr float, ptr %out_0, i64 %v133
  %p135 = getelementptr float, ptr %p134, i64 0
  store <8 x float> %v100, ptr %p135, align 4
  %p136 = getelementptr float, ptr %p134, i64 8
  store <8 x float> %v101, ptr %p136, align 4
  br label %done132
done132:
  %v137 = icmp sgt i64 %rows, 1
  br i1 %v137, label %yes138, label %done139
yes138:
  %v140 = mul nsw i64 %v119, 1
  %p141 = getelementptr float, ptr %out_0, i64 %v140
  %p142 = getelementptr float, ptr %p141, i64 0
  store <8 x float> %v102, ptr %p142, align 4
  %p143 = getelementptr float, ptr %p141, i64 8
  store <8 x float> %v103, ptr %p143, align 4
  br label %done139
done139:
  %v144 = icmp sgt i64 %rows, 2
  br i1 %v144, label %yes145, label %done146
yes145:
  %v147 = mul nsw i64 %v119, 2
  %p148 = getelementptr float, ptr %out_0, i64 %v147
  %p149 = getelementptr float, ptr %p148, i64 0
  store <8 x float> %v104, ptr %p149, align 4
  %p150 = getelementptr float, ptr %p148, i64 8
  store <8 x float> %v105, ptr %p150, align 4
  br label %done146
done146:
  %v151 = icmp sgt i64 %rows, 3
  br i1 %v151, label %yes152, label %done153
yes152:
  %v154 = mul nsw i64 %v119, 3
  %p155 = getelementptr float, ptr %out_0, i64 %v154
  %p156 = getelementptr float, ptr %p155, i64 0
  store <8 x float> %v106, ptr %p156, align 4
  %p157 = getelementptr float, ptr %p155, i64 8
  store <8 x float> %v107, ptr %p157, align 4
  br label %done153
done153:
  br label %done129
other128:
  %p159 = getelementptr float, ptr %room158, i64 0
  store <8 x float> %v100, ptr %p159, align 4
  %p160 = getelementptr float, ptr %room158, i64 8
  store <8 x float> %v101, ptr %p160, align 4
  %p161 = getelementptr float, ptr %room158, i64 16
  store <8 x float> %v102, ptr %p161, align 4
  %p162 = getelementptr float, ptr %room158, i64 24
  store <8 x float> %v103, ptr %p162, align 4
  %p163 = getelementptr float, ptr %room158, i64 32
  store <8 x float> %v104, ptr %p163, align 4
  %p164 = getelementptr float, ptr %room158, i64 40
  store <8 x float> %v105, ptr %p164, align 4
  %p165 = getelementptr float, ptr %room158, i64 48
  store <8 x float> %v106, ptr %p165, align 4
  %p166 = getelementptr float, ptr %room158, i64 56
  store <8 x float> %v107, ptr %p166, align 4
  call fastcc void @km_scatter_f32(ptr %out_0, ptr %room158, i64 %v119, i64 %v121, i64 %rows, i64 %columns, i64 %skew)
  br label %done129
done129:
  ret void
}

define internal fastcc void @km_pack_f32_4(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 3
  %v3 = sdiv i64 %v2, 4
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v122, %done103 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 4
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr float, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr float, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 4)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 4
  store i64 0, ptr %room1, align 8
  %v20 = and i1 %v19, %v4
  br i1 %v20, label %yes21, label %done22
yes21:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %yes21 ], [ %v33, %body24 ]
  %v27 = icmp slt i64 %i26, %depth
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %stride
  %p29 = getelementptr float, ptr %p13, i64 %v28
  %v30 = load <4 x float>, ptr %p29, align 4
  %v31 = mul nsw i64 %i26, 4
  %p32 = getelementptr float, ptr %p15, i64 %v31
  store <4 x float> %v30, ptr %p32, align 4
  %v33 = add nsw i64 %i26, 1
  br label %head23
done25:
  store i64 %depth, ptr %room1, align 8
  br label %done22
done22:
  %v34 = xor i1 %v4, true
  %v35 = and i1 %v5, %v34
  br i1 %v35, label %yes36, label %done37
yes36:
  %v38 = sdiv i64 %depth, 4
  %v39 = mul nsw i64 %v38, 4
  br label %head40
head40:
  %i43 = phi i64 [ 0, %yes36 ], [ %v99, %done47 ]
  %v44 = icmp slt i64 %i43, %v39
  br i1 %v44, label %body41, label %done42
body41:
  br label %head45
head45:
  %i48 = phi i64 [ 0, %body41 ], [ %v98, %body46 ]
  %v49 = icmp slt i64 %i48, 4
  br i1 %v49, label %body46, label %done47
body46:
  %v50 = add nsw i64 %i48, 0
  %v51 = call i64 @llvm.smin.i64(i64 %v50, i64 %v18)
  %v52 = mul nsw i64 %v51, %run
  %v53 = add nsw i64 %v52, %i43
  %p54 = getelementptr float, ptr %p13, i64 %v53
  %v55 = load <4 x float>, ptr %p54, align 4
  %v56 = add nsw i64 %i48, 1
  %v57 = call i64 @llvm.smin.i64(i64 %v56, i64 %v18)
  %v58 = mul nsw i64 %v57, %run
  %v59 = add nsw i64 %v58, %i43
  %p60 = getelementptr float, ptr %p13, i64 %v59
  %v61 = load <4 x float>, ptr %p60, align 4
  %v62 = add nsw i64 %i48, 2
  %v63 = call i64 @llvm.smin.i64(i64 %v62, i64 %v18)
  %v64 = mul nsw i64 %v63, %run
  %v65 = add nsw i64 %v64, %i43
  %p66 = getelementptr float, ptr %p13, i64 %v65
  %v67 = load <4 x float>, ptr %p66, align 4
  %v68 = add nsw i64 %i48, 3
  %v69 = call i64 @llvm.smin.i64(i64 %v68, i64 %v18)
  %v70 = mul nsw i64 %v69, %run
  %v71 = add nsw i64 %v70, %i43
  %p72 = getelementptr float, ptr %p13, i64 %v71
  %v73 = load <4 x float>, ptr %p72, align 4
  %v74 = shufflevector <4 x float> %v55, <4 x float> %v61, <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %v75 = shufflevector <4 x float> %v55, <4 x float> %v61, <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %v76 = shufflevector <4 x float> %v67, <4 x float> %v73, <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %v77 = shufflevector <4 x float> %v67, <4 x float> %v73, <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %v78 = shufflevector <4 x float> %v74, <4 x float> %v76, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v79 = shufflevector <4 x float> %v74, <4 x float> %v76, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v80 = shufflevector <4 x float> %v75, <4 x float> %v77, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v81 = shufflevector <4 x float> %v75, <4 x float> %v77, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v82 = add nsw i64 %i43, 0
  %v83 = mul nsw i64 %v82, 4
  %v84 = add nsw i64 %v83, %i48
  %p85 = getelementptr float, ptr %p15, i64 %v84
  store <4 x float> %v78, ptr %p85, align 4
  %v86 = add nsw i64 %i43, 1
  %v87 = mul nsw i64 %v86, 4
  %v88 = add nsw i64 %v87, %i48
  %p89 = getelementptr float, ptr %p15, i64 %v88
  store <4 x float> %v80, ptr %p89, align 4
  %v90 = add nsw i64 %i43, 2
  %v91 = mul nsw i64 %v90, 4
  %v92 = add nsw i64 %v91, %i48
  %p93 = getelementptr float, ptr %p15, i64 %v92
  store <4 x float> %v79, ptr %p93, align 4
  %v94 = add nsw i64 %i43, 3
  %v95 = mul nsw i64 %v94, 4
  %v96 = add nsw i64 %v95, %i48
  %p97 = getelementptr float, ptr %p15, i64 %v96
  store <4 x float> %v81, ptr %p97, align 4
  %v98 = add nsw i64 %i48, 4
  br label %head45
done47:
  %v99 = add nsw i64 %i43, 4
  br label %head40
done42:
  store i64 %v39, ptr %room1, align 8
  br label %done37
done37:
  %v100 = load i64, ptr %room1, align 8
  br label %head101
head101:
  %i104 = phi i64 [ %v100, %done37 ], [ %v121, %done108 ]
  %v105 = icmp slt i64 %i104, %depth
  br i1 %v105, label %body102, label %done103
body102:
  br label %head106
head106:
  %i109 = phi i64 [ 0, %body102 ], [ %v120, %body107 ]
  %v110 = icmp slt i64 %i109, 4
  br i1 %v110, label %body107, label %done108
body107:
  %v111 = call i64 @llvm.smin.i64(i64 %i109, i64 %v18)
  %v112 = mul nsw i64 %v111, %run
  %v113 = mul nsw i64 %i104, %stride
  %v114 = add nsw i64 %v112, %v113
  %p115 = getelementptr float, ptr %p13, i64 %v114
  %v116 = load float, ptr %p115, align 4
  %v117 = mul nsw i64 %i104, 4
  %v118 = add nsw i64 %v117, %i109
  %p119 = getelementptr float, ptr %p15, i64 %v118
  store float %v116, ptr %p119, align 4
  %v120 = add nsw i64 %i109, 1
  br label %head106
done108:
  %v121 = add nsw i64 %i104, 1
  br label %head101
done103:
  %v122 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_pack_f32_16(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 15
  %v3 = sdiv i64 %v2, 16
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v178, %done159 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 16
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr float, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr float, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 16)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 16
  store i64 0, ptr %room1, align 8
  %v20 = and i1 %v19, %v4
  br i1 %v20, label %yes21, label %done22
yes21:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %yes21 ], [ %v33, %body24 ]
  %v27 = icmp slt i64 %i26, %depth
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %stride
  %p29 = getelementptr float, ptr %p13, i64 %v28
  %v30 = load <16 x float>, ptr %p29, align 4
  %v31 = mul nsw i64 %i26, 16
  %p32 = getelementptr float, ptr %p15, i64 %v31
  store <16 x float> %v30, ptr %p32, align 4
  %v33 = add nsw i64 %i26, 1
  br label %head23
done25:
  store i64 %depth, ptr %room1, align 8
  br label %done22
done22:
  %v34 = xor i1 %v4, true
  %v35 = and i1 %v5, %v34
  br i1 %v35, label %yes36, label %done37
yes36:
  %v38 = sdiv i64 %depth, 8
  %v39 = mul nsw i64 %v38, 8
  br label %head40
head40:
  %i43 = phi i64 [ 0, %yes36 ], [ %v155, %done47 ]
  %v44 = icmp slt i64 %i43, %v39
  br i1 %v44, label %body41, label %done42
body41:
  br label %head45
head45:
  %i48 = phi i64 [ 0, %body41 ], [ %v154, %body46 ]
  %v49 = icmp slt i64 %i48, 16
  br i1 %v49, label %body46, label %done47
body46:
  %v50 = add nsw i64 %i48, 0
  %v51 = call i64 @llvm.smin.i64(i64 %v50, i64 %v18)
  %v52 = mul nsw i64 %v51, %run
  %v53 = add nsw i64 %v52, %i43
  %p54 = getelementptr float, ptr %p13, i64 %v53
  %v55 = load <8 x float>, ptr %p54, align 4
  %v56 = add nsw i64 %i48, 1
  %v57 = call i64 @llvm.smin.i64(i64 %v56, i64 %v18)
  %v58 = mul nsw i64 %v57, %run
  %v59 = add nsw i64 %v58, %i43
  %p60 = getelementptr float, ptr %p13, i64 %v59
  %v61 = load <8 x float>, ptr %p60, align 4
  %v62 = add nsw i64 %i48, 2
  %v63 = call i64 @llvm.smin.i64(i64 %v62, i64 %v18)
  %v64 = mul nsw i64 %v63, %run
  %v65 = add nsw i64 %v64, %i43
  %p66 = getelementptr float, ptr %p13, i64 %v65
  %v67 = load <8 x float>, ptr %p66, align 4
  %v68 = add nsw i64 %i48, 3
  %v69 = call i64 @llvm.smin.i64(i64 %v68, i64 %v18)
  %v70 = mul nsw i64 %v69, %run
  %v71 = add nsw i64 %v70, %i43
  %p72 = getelementptr float, ptr %p13, i64 %v71
  %v73 = load <8 x float>, ptr %p72, align 4
  %v74 = add nsw i64 %i48, 4
  %v75 = call i64 @llvm.smin.i64(i64 %v74, i64 %v18)
  %v76 = mul nsw i64 %v75, %run
  %v77 = add nsw i64 %v76, %i43
  %p78 = getelementptr float, ptr %p13, i64 %v77
  %v79 = load <8 x float>, ptr %p78, align 4
  %v80 = add nsw i64 %i48, 5
  %v81 = call i64 @llvm.smin.i64(i64 %v80, i64 %v18)
  %v82 = mul nsw i64 %v81, %run
  %v83 = add nsw i64 %v82, %i43
  %p84 = getelementptr float, ptr %p13, i64 %v83
  %v85 = load <8 x float>, ptr %p84, align 4
  %v86 = add nsw i64 %i48, 6
  %v87 = call i64 @llvm.smin.i64(i64 %v86, i64 %v18)
  %v88 = mul nsw i64 %v87, %run
  %v89 = add nsw i64 %v88, %i43
  %p90 = getelementptr float, ptr %p13, i64 %v89
  %v91 = load <8 x float>, ptr %p90, align 4
  %v92 = add nsw i64 %i48, 7
  %v93 = call i64 @llvm.smin.i64(i64 %v92, i64 %v18)
  %v94 = mul nsw i64 %v93, %run
  %v95 = add nsw i64 %v94, %i43
  %p96 = getelementptr float, ptr %p13, i64 %v95
  %v97 = load <8 x float>, ptr %p96, align 4
  %v98 = shufflevector <8 x float> %v55, <8 x float> %v61, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v99 = shufflevector <8 x float> %v55, <8 x float> %v61, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v100 = shufflevector <8 x float> %v67, <8 x float> %v73, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v101 = shufflevector <8 x float> %v67, <8 x float> %v73, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v102 = shufflevector <8 x float> %v79, <8 x float> %v85, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v103 = shufflevector <8 x float> %v79, <8 x float> %v85, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v104 = shufflevector <8 x float> %v91, <8 x float> %v97, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v105 = shufflevector <8 x float> %v91, <8 x float> %v97, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v106 = shufflevector <8 x float> %v98, <8 x float> %v100, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v107 = shufflevector <8 x float> %v98, <8 x float> %v100, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v108 = shufflevector <8 x float> %v99, <8 x float> %v101, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v109 = shufflevector <8 x float> %v99, <8 x float> %v101, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v110 = shufflevector <8 x float> %v102, <8 x float> %v104, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v111 = shufflevector <8 x float> %v102, <8 x float> %v104, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v112 = shufflevector <8 x float> %v103, <8 x float> %v105, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v113 = shufflevector <8 x float> %v103, <8 x float> %v105, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v114 = shufflevector <8 x float> %v106, <8 x float> %v110, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v115 = shufflevector <8 x float> %v106, <8 x float> %v110, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v116 = shufflevector <8 x float> %v108, <8 x float> %v112, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v117 = shufflevector <8 x float> %v108, <8 x float> %v112, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v118 = shufflevector <8 x float> %v107, <8 x float> %v111, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v119 = shufflevector <8 x float> %v107, <8 x float> %v111, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v120 = shufflevector <8 x float> %v109, <8 x float> %v113, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v121 = shufflevector <8 x float> %v109, <8 x float> %v113, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v122 = add nsw i64 %i43, 0
  %v123 = mul nsw i64 %v122, 16
  %v124 = add nsw i64 %v123, %i48
  %p125 = getelementptr float, ptr %p15, i64 %v124
  store <8 x float> %v114, ptr %p125, align 4
  %v126 = add nsw i64 %i43, 1
  %v127 = mul nsw i64 %v126, 16
  %v128 = add nsw i64 %v127, %i48
  %p129 = getelementptr float, ptr %p15, i64 %v128
  store <8 x float> %v116, ptr %p129, align 4
  %v130 = add nsw i64 %i43, 2
  %v131 = mul nsw i64 %v130, 16
  %v132 = add nsw i64 %v131, %i48
  %p133 = getelementptr float, ptr %p15, i64 %v132
  store <8 x float> %v118, ptr %p133, align 4
  %v134 = add nsw i64 %i43, 3
  %v135 = mul nsw i64 %v134, 16
  %v136 = add nsw i64 %v135, %i48
  %p137 = getelementptr float, ptr %p15, i64 %v136
  store <8 x float> %v120, ptr %p137, align 4
  %v138 = add nsw i64 %i43, 4
  %v139 = mul nsw i64 %v138, 16
  %v140 = add nsw i64 %v139, %i48
  %p141 = getelementptr float, ptr %p15, i64 %v140
  store <8 x float> %v115, ptr %p141, align 4
  %v142 = add nsw i64 %i43, 5
  %v143 = mul nsw i64 %v142, 16
  %v144 = add nsw i64 %v143, %i48
  %p145 = getelementptr float, ptr %p15, i64 %v144
  store <8 x float> %v117, ptr %p145, align 4
  %v146 = add nsw i64 %i43, 6
  %v147 = mul nsw i64 %v146, 16
  %v148 = add nsw i64 %v147, %i48
  %p149 = getelementptr float, ptr %p15, i64 %v148
  store <8 x float> %v119, ptr %p149, align 4
  %v150 = add nsw i64 %i43, 7
  %v151 = mul nsw i64 %v150, 16
  %v152 = add nsw i64 %v151, %i48
  %p153 = getelementptr float, ptr %p15, i64 %v152
  store <8 x float> %v121, ptr %p153, align 4
  %v154 = add nsw i64 %i48, 8
  br label %head45
done47:
  %v155 = add nsw i64 %i43, 8
  br label %head40
done42:
  store i64 %v39, ptr %room1, align 8
  br label %done37
done37:
  %v156 = load i64, ptr %room1, align 8
  br label %head157
head157:
  %i160 = phi i64 [ %v156, %done37 ], [ %v177, %done164 ]
  %v161 = icmp slt i64 %i160, %depth
  br i1 %v161, label %body158, label %done159
body158:
  br label %head162
head162:
  %i165 = phi i64 [ 0, %body158 ], [ %v176, %body163 ]
  %v166 = icmp slt i64 %i165, 16
  br i1 %v166, label %body163, label %done164
body163:
  %v167 = call i64 @llvm.smin.i64(i64 %i165, i64 %v18)
  %v168 = mul nsw i64 %v167, %run
  %v169 = mul nsw i64 %i160, %stride
  %v170 = add nsw i64 %v168, %v169
  %p171 = getelementptr float, ptr %p13, i64 %v170
  %v172 = load float, ptr %p171, align 4
  %v173 = mul nsw i64 %i160, 16
  %v174 = add nsw i64 %v173, %i165
  %p175 = getelementptr float, ptr %p15, i64 %v174
  store float %v172, ptr %p175, align 4
  %v176 = add nsw i64 %i165, 1
  br label %head162
done164:
  %v177 = add nsw i64 %i160, 1
  br label %head157
done159:
  %v178 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_scatter_f32(ptr %into, ptr noalias %from, i64 %sm, i64 %sn, i64 %rows, i64 %columns, i64 %skew) noinline {
entry:
  br label %head1
head1:
  %i4 = phi i64 [ 0, %entry ], [ %v22, %done10 ]
  %v5 = icmp slt i64 %i4, %rows
  br i1 %v5, label %body2, label %done3
body2:
  %v6 = add nsw i64 %i4, %skew
  %v7 = call i64 @llvm.smax.i64(i64 0, i64 %v6)
  br label %head8
head8:
  %i11 = phi i64 [ %v7, %body2 ], [ %v21, %body9 ]
  %v12 = icmp slt i64 %i11, %columns
  br i1 %v12, label %body9, label %done10
body9:
  %v13 = mul nsw i64 %i4, 16
  %v14 = add nsw i64 %v13, %i11
  %p15 = getelementptr float, ptr %from, i64 %v14
  %v16 = load float, ptr %p15, align 4
  %v17 = mul nsw i64 %i4, %sm
  %v18 = mul nsw i64 %i11, %sn
  %v19 = add nsw i64 %v17, %v18
  %p20 = getelementptr float, ptr %into, i64 %v19
  store float %v16, ptr %p20, align 4
  %v21 = add nsw i64 %i11, 1
  br label %head8
done10:
  %v22 = add nsw i64 %i4, 1
  br label %head1
done3:
  ret void
}

!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.count", i32 2}
!2 = distinct !{!2, !1}
!3 = distinct !{!3, !4}
!4 = !{!"llvm.loop.unroll.count", i32 8}
